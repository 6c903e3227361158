"""Forecasts and limits of loading; what a failed load leaves behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from service.config import ServiceSettings
from service.versions.loader import Loader, LoadRejected
from service.versions.throttle import LoadThrottle
from service.versions.version import ModelVersion
from tests.units.service.versions.driven import WarmUp, Write, no_warm_up


def loader(root: Path, warm_up: WarmUp = no_warm_up, **settings: Any) -> Loader:
    return Loader(ServiceSettings(root=root, **settings), 2, warm_up)


def maps() -> int:
    return sum(b"/tables/" in line for line in Path("/proc/self/maps").read_bytes().splitlines())


def test_load_maps_every_table_and_close_or_a_failed_warm_up_unmaps_them(
    write: Write, root: Path
) -> None:
    def fail(version: ModelVersion, throttle: LoadThrottle) -> None:
        raise LoadRejected("no")

    write()
    before = maps()
    version = loader(root).load("movies", 1)
    assert maps() == before + 8
    version.close()
    assert maps() == before
    with pytest.raises(LoadRejected):
        loader(root, fail).load("movies", 1)
    assert maps() == before
