"""A root with versions 1 and 2 of one model, and a worker that serves 2 and keeps 1."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from service.admin.service import Service
from service.config import ServiceSettings
from service.coordinator import Coordinator
from tests.units.service.admin.workers import Worker, publish


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "bundles"
    publish(root, 1)
    return root


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


@pytest.fixture
def settings(root: Path) -> ServiceSettings:
    return ServiceSettings(root=root)


@pytest.fixture
def worker(settings: ServiceSettings, coordinator: Coordinator) -> Iterator[Worker]:
    worker = Worker(settings, coordinator)
    publish(settings.root, 2)
    worker.scan()
    yield worker
    worker.close()


@pytest.fixture
def service(settings: ServiceSettings, coordinator: Coordinator, worker: Worker) -> Service:
    return Service(settings, coordinator)


@pytest.fixture
def apply(service: Service) -> Callable[..., dict[str, Any]]:
    """Applies a command to the model by its name and arguments; returns the status after it."""
    return lambda name, model="movies", **arguments: service.apply(
        name, orjson.dumps(arguments), model
    )
