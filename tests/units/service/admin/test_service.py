"""What an operator commands of a service, and what comes of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.admin.service import Service
from service.config import ServiceSettings
from service.coordinator import Coordinator
from service.errors import NotReady
from service.versions.state_file import NAME
from tests.units.service.admin.workers import Worker, publish

Apply = Callable[..., dict[str, Any]]


def model(status: dict[str, Any]) -> dict[str, Any]:
    model_status: dict[str, Any] = status["models"][0]
    return model_status


def unmet(status: dict[str, Any]) -> list[tuple[int, str, str]]:
    return [(wish["version"], wish["wanted"], wish["state"]) for wish in model(status)["unmet"]]


def test_rollback_to_a_version_that_fails_is_unmet_until_a_newer_one_is_published(
    settings: ServiceSettings, root: Path, coordinator: Coordinator
) -> None:
    publish(root, 2)
    worker = Worker(settings, coordinator)
    service = Service(settings, coordinator)
    try:
        service.apply("rollback", b"", "movies")
        worker.failing[1] = "vectors.bin differs from its checksum"
        worker.scan()
        assert unmet(service.status()) == [(1, "loaded", "failed")]
        publish(root, 3)
        worker.scan()
        assert (model(service.status())["current"], unmet(service.status())) == (3, [])
    finally:
        worker.close()


def test_version_that_only_one_worker_has_loaded_is_unmet(
    service: Service, worker: Worker, settings: ServiceSettings, coordinator: Coordinator
) -> None:
    publish(settings.root, 3)
    second_worker = Worker(settings, coordinator, os.getppid())
    try:
        status = service.status()
        assert [process["pid"] for process in status["processes"]] == sorted(
            (os.getpid(), os.getppid())
        )
        assert status["memory"]["resident_bytes"] == 2 << 20
        assert unmet(status) == [(3, "loaded", "missing")]
        worker.scan()
        assert unmet(service.status()) == []
    finally:
        second_worker.close()


def test_damaged_state_file_is_reported_and_what_was_desired_stays(
    apply: Apply, service: Service, root: Path
) -> None:
    apply("pin", versions=[1])
    (root / NAME).write_text("{")
    assert "is damaged" in service.status()["state_problem"]
    assert model(service.status())["wanted"] == {"pinned": [1]}
    with pytest.raises(NotReady, match="is damaged"):
        apply("drain")


MEASURED = """
from service.observability.metrics import Metrics
metrics = Metrics()
for term, total in {"hits": 90, "neighbors": 100, "squared_neighbors": 1000}.items():
    metrics.set("live_recall_window", total, "movies", "titles", term)
"""


def test_report_holds_the_quality_that_the_workers_measured(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert service.report()["quality"] == []
    directory = tmp_path / "metrics"
    directory.mkdir()
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(directory))
    subprocess.run([sys.executable, "-c", MEASURED], check=True)
    recall, low, high = service.report()["quality"]
    expected = {"metric": "rowcast_live_recall", "model": "movies", "index": "titles", "value": 0.9}
    assert recall == expected
    assert low["value"] < 0.9 < high["value"]
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path / "gone"))
    assert service.report()["quality"] == []
