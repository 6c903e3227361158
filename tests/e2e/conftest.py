"""Services in processes of their own, over bundles that the tests write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.process import Process


@pytest.fixture
def launch(root: Path) -> Iterator[Callable[..., Process]]:
    """Starts `rowcast-serve` over `root`; kills it after the test."""
    started: list[Process] = []

    def start(*options: str) -> Process:
        started.append(Process(root, *options))
        return started[-1]

    yield start
    for each in started:
        each.kill()
