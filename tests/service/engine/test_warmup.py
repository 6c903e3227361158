"""Synthetic requests that a version answers before it is served."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from service.engine import warmup
from tests.service.engine.served import Served

Load = Callable[..., Served]


@pytest.mark.parametrize("parts", [False, True])
def test_warm_up_runs_every_tower_and_throttles(load: Load, parts: bool) -> None:
    service = load(parts=parts, users=True)
    counters = {name: service.counted(name) for name in service.version.towers}
    throttled = list[None]()
    warmup.run(service.version, service.settings, lambda: throttled.append(None))
    assert len(throttled) > len(service.small.tables) + len(counters)
    for tower in counters.values():
        for counter in tower.values():
            assert {1, 64} <= set(counter.examples)
