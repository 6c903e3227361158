"""Synthetic requests that a version answers before it is served."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from service.engine import warmup
from tests.service.engine.served import Served

Load = Callable[..., Served]


@pytest.mark.parametrize("parts", [False, True])
def test_warm_up_runs_every_tower_and_throttles_after_every_step(load: Load, parts: bool) -> None:
    service = load(parts=parts, users=True)
    counters = {name: service.counted(name) for name in service.version.towers}
    throttled = list[None]()
    warmup.run(service.version, service.settings, lambda: throttled.append(None))
    tables, stores, towers = len(service.small.tables), 1, len(counters)
    searches, calls = 2, towers + 2  # embeds with each tower, ranks, recommends
    assert len(throttled) == tables + stores + 2 * towers + searches + calls
    for tower in counters.values():
        for counter in tower.values():
            assert {1, 64} <= set(counter.examples)


def test_warm_up_of_a_tower_that_fails_raises(load: Load) -> None:
    service = load()
    (counter,) = service.counted("query").values()
    counter.failure = RuntimeError("broken")
    with pytest.raises(RuntimeError, match="broken"):
        warmup.run(service.version, service.settings, lambda: None)
