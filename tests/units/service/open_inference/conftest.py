"""A service that speaks the protocol, and one client of each transport."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import pytest

from tests.bundles.small import SmallBundle, write_small_bundle
from tests.units.service.cases import LIMITS, MODEL
from tests.units.service.running import RunningService


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, small_towers: Path) -> SmallBundle:
    return write_small_bundle(tmp_path_factory.mktemp("bundles"), small_towers, MODEL, 1)


@pytest.fixture(scope="module")
def service(small: SmallBundle) -> Iterator[RunningService]:
    root = small.directory.parents[1]
    running = RunningService(root, protocols=("open-inference",), **LIMITS)
    yield running
    running.close()


@pytest.fixture(scope="module")
def http(service: RunningService) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.http, timeout=20) as client:
        yield client


@pytest.fixture(scope="module")
def channel(service: RunningService) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(service.grpc) as channel:
        yield channel
