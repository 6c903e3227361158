"""Synthetic requests that a version computes before it is served."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from numpy.typing import NDArray

from runtime.errors import ComputationFailed, InvalidInput
from service.engine import warmup
from tests.bundles.small import SmallBundle
from tests.units.service.engine.served import CountingTower
from tests.units.service.running import RunningService

Serve = Callable[..., RunningService]
Write = Callable[..., SmallBundle]


def warm_up(service: RunningService) -> int:
    """Returns how often the load would have paused."""
    pauses = list[None]()
    warmup.run(service.current(), service.settings, lambda: pauses.append(None))
    return len(pauses)


class ParsingTower(CountingTower):
    """Cannot compute with the values that nobody would send."""

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        super().run(inputs)
        raise ComputationFailed("'' is no number")


class MisfitTower(CountingTower):
    """Does not fit the manifest."""

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        raise InvalidInput("'price' has dtype object")


@pytest.mark.parametrize("counter", [CountingTower, ParsingTower])
def test_warm_up_runs_every_tower_whatever_it_computes(
    counter: type[CountingTower], write: Write, serve: Serve
) -> None:
    small = write(users=True)
    service = serve()
    counters = {}
    for name, tower in service.current().towers.items():
        counters[name] = counter(tower.parts[0].network)
        service.with_network(name, counters[name])
    assert warm_up(service) > len(small.tables) + len(counters)
    for tower_counter in counters.values():
        assert {1, 64} <= {*tower_counter.examples}


def test_tower_that_does_not_fit_its_manifest_keeps_a_version_from_service(
    write: Write, serve: Serve
) -> None:
    write()
    service = serve()
    service.with_network(
        "ranking", MisfitTower(service.current().towers["ranking"].parts[0].network)
    )
    with pytest.raises(InvalidInput, match="'price'"):
        warm_up(service)
