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
from tests.units.service.versions.driven import Driven, Write


@pytest.fixture
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def warm_up(version: ModelVersion, throttle: LoadThrottle) -> None:
    """Serves requests, so that every cache of a version is filled before it is retired."""
    warmup.run(version, ServiceSettings(root=version.directory.parents[1]), throttle)


@pytest.mark.usefixtures("_no_collector")
def test_retired_versions_are_freed_over_ten_switches(
    write: Write, drive: Callable[..., Driven]
) -> None:
    """Weak references show that objects whose memory is not Python's are gone, such as networks."""
    write()
    driven = drive(warm_up=warm_up)
    held_by_version: dict[int, list[weakref.ref[object]]] = {}
    for version in range(1, 11):
        with driven.manager.acquire("movies") as current:
            parts = [part.network for tower in current.towers.values() for part in tower.parts]
            parts_of_version = [current, current.reader, *current.towers.values(), *parts]
            held_by_version[version] = [weakref.ref(part) for part in parts_of_version]
        del current, parts, parts_of_version
        write(version=version + 1)
        driven.scan()
    driven.manager.wait_closed()

    del held_by_version[10]  # kept for a rollback, since 11 is served
    alive = {
        version: [type(reference()).__name__ for reference in references if reference() is not None]
        for version, references in held_by_version.items()
    }
    assert not any(alive.values()), alive
