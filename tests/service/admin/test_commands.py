"""What an operator commands of a service, and what comes of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.admin.commands import Commands
from service.config import ServiceSettings
from service.errors import InvalidArgument, NotFound, NotReady, ServiceError, Unimplemented
from service.models.state_file import NAME
from tests.service.admin.workers import Worker, publish


def model(status: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = status["models"][0]
    return found


def unmet(status: dict[str, Any]) -> list[tuple[int, str, str]]:
    return [(each["version"], each["wanted"], each["state"]) for each in model(status)["unmet"]]


def test_rollback_to_the_kept_version_is_in_effect_when_it_returns(commands: Commands) -> None:
    status = commands.roll_back("movies", None)
    assert model(status)["current"] == 1
    assert model(status)["wanted"] == {"rolled_back": {"to": 1, "above": 2}}
    assert unmet(status) == []
    with pytest.raises(NotFound, match="no version before 1"):
        commands.roll_back("movies", None)
    assert model(commands.unpin("movies"))["current"] == 2


def test_rollback_to_a_version_that_is_not_loaded_waits_for_its_load(
    settings: ServiceSettings, root: Path, run_directory: Path
) -> None:
    publish(root, 2)
    worker, commands = Worker(settings, run_directory), Commands(settings, run_directory)
    try:
        status = commands.roll_back("movies", None)
        assert (model(status)["current"], unmet(status)) == (2, [(1, "loaded", "missing")])
        worker.scan()
        status = commands.status()
        assert (model(status)["current"], unmet(status)) == (1, [])
    finally:
        worker.close()


def test_rollback_to_what_is_no_older_version_is_rejected(commands: Commands) -> None:
    with pytest.raises(InvalidArgument, match="one before 2"):
        commands.roll_back("movies", 2)
    with pytest.raises(NotFound, match="version 7"):
        commands.roll_back("movies", 7)


def test_unload_and_load_undo_each_other(commands: Commands, worker: Worker) -> None:
    status = commands.unload("movies", 2)
    assert (model(status)["current"], model(status)["wanted"]) == (1, {"unloaded": [2]})
    commands.load("movies", 2)
    worker.scan()
    assert (model(commands.status())["current"], model(commands.status())["wanted"]) == (2, {})


def test_older_version_loaded_by_command_is_unloaded_without_being_forbidden(
    commands: Commands, worker: Worker, root: Path
) -> None:
    publish(root, 3)
    worker.scan()
    commands.load("movies", 1)
    worker.scan()
    assert worker.states() == {3: "available", 2: "kept", 1: "available"}
    assert model(commands.unload("movies", 1))["wanted"] == {}
    assert worker.states() == {3: "available", 2: "kept"}


def test_model_is_unloaded_and_loaded_as_a_whole(commands: Commands, worker: Worker) -> None:
    status = commands.unload("movies", None)
    assert (model(status)["current"], model(status)["wanted"]) == (None, {"stopped": True})
    with pytest.raises(NotReady, match="no current version"):
        commands.roll_back("movies", None)
    assert unmet(commands.load("movies", None)) == [(2, "loaded", "missing")]
    worker.scan()
    assert (model(commands.status())["current"], unmet(commands.status())) == (2, [])


def test_newest_version_is_unmet_until_it_is_loaded_or_fails(commands: Commands, worker: Worker, root: Path) -> None:
    commands.pin("movies", (1,))
    publish(root, 3)
    publish(root, 4)
    worker.scan()
    assert unmet(commands.unpin("movies")) == [(4, "loaded", "missing")]
    worker.failing[4] = "vectors.bin differs from its checksum"
    worker.scan()
    assert (model(commands.status())["current"], unmet(commands.status())) == (3, [])


def test_version_that_only_one_worker_has_loaded_is_unmet(
    commands: Commands, worker: Worker, settings: ServiceSettings, run_directory: Path
) -> None:
    publish(settings.root, 3)
    other = Worker(settings, run_directory, os.getppid())
    try:
        status = commands.status()
        assert [each["pid"] for each in status["processes"]] == sorted((os.getpid(), os.getppid()))
        assert status["memory"]["resident_bytes"] == 2 << 20
        assert unmet(status) == [(3, "loaded", "missing")]
        worker.scan()
        assert unmet(commands.status()) == []
    finally:
        other.close()


def test_label_is_listed_with_its_version(commands: Commands) -> None:
    status = commands.label("movies", "stable", 1)
    assert [tuple(each["labels"]) for each in model(status)["versions"]] == [(), ("stable",)]
    with pytest.raises(InvalidArgument, match="remove them first"):
        commands.unload("movies", 1)
    assert model(commands.unlabel("movies", "stable"))["wanted"] == {}


def test_pinned_version_that_cannot_be_loaded_is_unmet_with_its_problem(
    commands: Commands, worker: Worker, root: Path
) -> None:
    publish(root, 3)
    worker.failing[3] = "vectors.bin differs from its checksum"
    commands.pin("movies", (3,))
    worker.scan()
    status = commands.status()
    assert unmet(status) == [(3, "loaded", "failed")]
    assert "vectors.bin" in model(status)["unmet"][0]["problem"]
    assert model(status)["current"] == 2


def test_status_lists_the_memory_of_each_version(commands: Commands, settings: ServiceSettings) -> None:
    status = commands.status()
    assert [(each["version"], each["state"]) for each in model(status)["versions"]] == [(2, "available"), (1, "kept")]
    assert all(each["memory_bytes"] > 0 for each in model(status)["versions"])
    assert status["memory"]["free_bytes"] > 0
    assert (status["root"], status["state_file"]) == (str(settings.root), str(settings.root / NAME))


def test_damaged_state_file_is_reported_and_what_was_desired_stays(commands: Commands, root: Path) -> None:
    commands.pin("movies", (1,))
    (root / NAME).write_text("{")
    assert "is damaged" in commands.status()["state_problem"]
    assert model(commands.status())["wanted"] == {"pinned": [1]}
    with pytest.raises(NotReady, match="is damaged"):
        commands.drain(draining=True)


@pytest.mark.parametrize(
    ("command", "error", "message"),
    [
        (lambda to: to.pin("films", (1,)), NotFound, "no model 'films'.*there are 'movies'"),
        (lambda to: to.unpin("../movies"), NotFound, "no model"),
        (lambda to: to.pin("movies", (9,)), NotFound, "version 9 of model 'movies' is not in the root; there are 2, 1"),
        (lambda to: to.label("movies", "a b", 1), InvalidArgument, "labels"),
        (lambda to: to.unlabel("movies", "x"), InvalidArgument, "label is 'x'"),
    ],
)
def test_invalid_command_changes_nothing(
    commands: Commands, root: Path, command: Callable[[Commands], Any], error: type[ServiceError], message: str
) -> None:
    with pytest.raises(error, match=message):
        command(commands)
    assert not (root / NAME).exists()


def test_state_file_that_cannot_be_written_is_reported_with_the_remedy(root: Path, run_directory: Path) -> None:
    settings = ServiceSettings(root=root, state_file=Path("/proc/rowcast-state.json"))
    with pytest.raises(ServiceError, match=r"/proc/rowcast-state\.json cannot be written") as rejected:
        Commands(settings, run_directory).drain(draining=True)
    assert isinstance(rejected.value, Unimplemented | NotReady)
