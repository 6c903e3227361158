"""One service for all tests of a module that change nothing in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.bundles.small import write_small_bundle
from tests.e2e.process import WAIT_S
from tests.units.service.running import RunningService

LIMITS = {"max_request_bytes": 4096, "max_queries": 8, "max_names": 4}


@pytest.fixture(scope="module")
def service(
    tmp_path_factory: pytest.TempPathFactory, small_towers: Path
) -> Iterator[RunningService]:
    root = tmp_path_factory.mktemp("root")
    write_small_bundle(root, small_towers)
    running = RunningService(root, **LIMITS)
    yield running
    running.close()


@pytest.fixture(scope="module")
def http(service: RunningService) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.http, timeout=WAIT_S, verify=False) as client:
        yield client
