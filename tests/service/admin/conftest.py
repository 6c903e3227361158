"""A root with versions 1 and 2 of one model, and a worker that serves 2 and keeps 1."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from service.admin.commands import Commands
from service.config import ServiceSettings
from tests.service.admin.workers import Worker, publish


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "bundles"
    publish(root, 1)
    return root


@pytest.fixture
def run_directory(tmp_path: Path) -> Path:
    directory = tmp_path / "run"
    directory.mkdir()
    return directory


@pytest.fixture
def settings(root: Path) -> ServiceSettings:
    return ServiceSettings(root=root)


@pytest.fixture
def worker(settings: ServiceSettings, run_directory: Path) -> Iterator[Worker]:
    worker = Worker(settings, run_directory)
    publish(settings.root, 2)
    worker.scan()
    yield worker
    worker.close()


@pytest.fixture
def commands(settings: ServiceSettings, run_directory: Path, worker: Worker) -> Commands:
    return Commands(settings, run_directory)
