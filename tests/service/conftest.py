"""Services in the process of the tests, over bundles that they write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.service.running import RunningService


@pytest.fixture
def serve(root: Path) -> Iterator[Callable[..., RunningService]]:
    """Starts services in this process, with both transports on loopback; ends them after the test."""
    started: list[RunningService] = []

    def start(**settings: Any) -> RunningService:
        started.append(RunningService(root, **settings))
        return started[-1]

    yield start
    for each in started:
        each.close()
