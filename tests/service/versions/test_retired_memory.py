"""The memory of retired versions is returned, by reference counts alone."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest

from service.config import ServiceSettings
from service.engine import warmup
from service.versions.throttle import LoadThrottle
from service.versions.version import ModelVersion
from tests.service.versions.driven import Driven, Write


@pytest.fixture
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_no_collector")
def test_retired_versions_are_freed_over_ten_switches(
    write: Write, drive: Callable[..., Driven]
) -> None:
    """Versions answer requests before they are retired, so that every cache of theirs is filled."""

    def warm_up(version: ModelVersion, throttle: LoadThrottle) -> None:
        warmup.run(version, ServiceSettings(root=version.directory.parents[1]), throttle)

    write()
    driven = drive(warm_up=warm_up)
    held_by_version: dict[int, list[weakref.ref[object]]] = {}
    for version in range(1, 11):
        with driven.manager.acquire("movies") as current:
            parts = [part.network for tower in current.towers.values() for part in tower.parts]
            held = [current, current.reader, *current.towers.values(), *parts]
            held_by_version[version] = [weakref.ref(each) for each in held]
        del current, parts, held
        write(version=version + 1)
        driven.scan()
    driven.manager.wait_closed()

    del held_by_version[10]  # kept for a rollback, since 11 is served
    alive = {
        version: [type(each()).__name__ for each in held if each() is not None]
        for version, held in held_by_version.items()
    }
    assert not any(alive.values()), alive
