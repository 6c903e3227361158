"""What an operator commands of a service, and what comes of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.admin.service import Service
from service.config import ServiceSettings
from service.errors import NotFound, NotReady
from service.models.state_file import NAME
from tests.service.admin.workers import Worker, publish

Apply = Callable[..., dict[str, Any]]


def model(status: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = status["models"][0]
    return found


def unmet(status: dict[str, Any]) -> list[tuple[int, str, str]]:
    return [(each["version"], each["wanted"], each["state"]) for each in model(status)["unmet"]]


def test_rollback_to_the_kept_version_is_in_effect_when_it_returns(apply: Apply) -> None:
    status = apply("rollback")
    assert (model(status)["current"], unmet(status)) == (1, [])
    assert model(status)["wanted"] == {"rolled_back": {"to": 1, "above": 2}}
    assert model(apply("unpin"))["current"] == 2


def test_rollback_to_a_version_that_is_not_loaded_waits_for_its_load(
    settings: ServiceSettings, root: Path, run_directory: Path
) -> None:
    publish(root, 2)
    worker, service = Worker(settings, run_directory), Service(settings, run_directory)
    try:
        status = service.apply("rollback", b"", "movies")
        assert (model(status)["current"], unmet(status)) == (2, [(1, "loaded", "missing")])
        worker.scan()
        status = service.status()
        assert (model(status)["current"], unmet(status)) == (1, [])
    finally:
        worker.close()


def test_version_or_model_is_unloaded_and_loaded(apply: Apply, service: Service, worker: Worker) -> None:
    assert model(apply("unload", version=2))["current"] == 1
    apply("load", version=2)
    worker.scan()
    assert (model(service.status())["current"], model(service.status())["wanted"]) == (2, {})
    assert model(apply("unload"))["current"] is None
    assert unmet(apply("load")) == [(2, "loaded", "missing")]
    worker.scan()
    assert (model(service.status())["current"], unmet(service.status())) == (2, [])


def test_newest_version_is_unmet_until_it_is_loaded_or_fails(
    apply: Apply, service: Service, worker: Worker, root: Path
) -> None:
    apply("pin", versions=[1])
    publish(root, 3)
    publish(root, 4)
    worker.scan()
    assert unmet(apply("unpin")) == [(4, "loaded", "missing")]
    worker.failing[4] = "vectors.bin differs from its checksum"
    worker.scan()
    assert (model(service.status())["current"], unmet(service.status())) == (3, [])
    status = apply("pin", versions=[4])
    assert unmet(status) == [(4, "loaded", "failed")]
    assert "vectors.bin" in model(status)["unmet"][0]["problem"]


def test_version_that_only_one_worker_has_loaded_is_unmet(
    service: Service, worker: Worker, settings: ServiceSettings, run_directory: Path
) -> None:
    publish(settings.root, 3)
    other = Worker(settings, run_directory, os.getppid())
    try:
        status = service.status()
        assert [each["pid"] for each in status["processes"]] == sorted((os.getpid(), os.getppid()))
        assert status["memory"]["resident_bytes"] == 2 << 20
        assert unmet(status) == [(3, "loaded", "missing")]
        worker.scan()
        assert unmet(service.status()) == []
    finally:
        other.close()


def test_status_lists_versions_with_their_labels_and_memory(apply: Apply, settings: ServiceSettings) -> None:
    status = apply("label", label="stable", version=1)
    versions = [(each["version"], each["state"], list(each["labels"])) for each in model(status)["versions"]]
    assert versions == [(2, "available", []), (1, "available", ["stable"])]
    assert all(each["memory_bytes"] > 0 for each in model(status)["versions"])
    assert status["memory"]["free_bytes"] > 0
    assert (status["root"], status["state_file"]) == (str(settings.root), str(settings.root / NAME))


def test_damaged_state_file_is_reported_and_what_was_desired_stays(apply: Apply, service: Service, root: Path) -> None:
    apply("pin", versions=[1])
    (root / NAME).write_text("{")
    assert "is damaged" in service.status()["state_problem"]
    assert model(service.status())["wanted"] == {"pinned": [1]}
    with pytest.raises(NotReady, match="is damaged"):
        apply("drain")


@pytest.mark.parametrize(
    ("name", "to", "given", "message"),
    [
        ("pin", "films", {"versions": [1]}, "no model 'films'.*there are 'movies'"),
        ("unpin", "../movies", {}, "no model"),
        ("pin", "movies", {"versions": [9]}, "version 9 of model 'movies' is not in the root; there are 2, 1"),
        ("rollback", "movies", {"version": 7}, "version 7"),
    ],
)
def test_command_for_what_does_not_exist_changes_nothing(
    apply: Apply, root: Path, name: str, to: str, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(NotFound, match=message):
        apply(name, to, **given)
    assert not (root / NAME).exists()


def test_state_file_that_cannot_be_written_is_reported_with_the_remedy(root: Path, run_directory: Path) -> None:
    settings = ServiceSettings(root=root, state_file=Path("/proc/rowcast-state.json"))
    with pytest.raises(NotReady, match=r"/proc/rowcast-state\.json cannot be written.*--state-file names another"):
        Service(settings, run_directory).apply("drain", b"")
