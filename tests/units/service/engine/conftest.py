"""Loaded versions of small bundles."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from service.engine.scheduling.compute_pool import ComputePool
from tests.bundles.small import SmallBundle
from tests.units.service.engine.served import Served


@pytest.fixture
def load(write: Callable[..., SmallBundle]) -> Iterator[Callable[..., Served]]:
    """Writes a small bundle with some options and loads it; closes it after the test.

    `limits` are settings; `threads`: how many compute threads large calls are divided over.
    """
    loaded: list[Served] = []

    def served(limits: dict[str, int] | None = None, threads: int = 0, **options: object) -> Served:
        pool = ComputePool(threads) if threads else None
        loaded.append(Served(write(**options), pool, **(limits or {})))
        return loaded[-1]

    yield served
    for load in loaded:
        load.close()
