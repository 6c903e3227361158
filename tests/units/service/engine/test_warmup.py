"""Synthetic requests that a version computes before it is served."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from numpy.typing import NDArray

from runtime.errors import ComputationFailed, InvalidInput
from service.engine import warmup
from tests.units.service.engine.served import CountingTower, Served

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


class ParsingTower(CountingTower):
    """Cannot compute with the values that nobody would send."""

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        super().run(inputs)
        raise ComputationFailed("'' is no number")


class MisfitTower(CountingTower):
    """Does not fit the manifest."""

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        raise InvalidInput("'price' has dtype object")


def test_values_that_a_tower_cannot_compute_with_do_not_keep_a_version_from_service(
    load: Load,
) -> None:
    service = load()
    (network,) = service.wrapped("ranking", ParsingTower).values()
    warmup.run(service.version, service.settings, lambda: None)
    assert {1, 64} <= set(network.examples)


def test_tower_that_does_not_fit_its_manifest_keeps_a_version_from_service(load: Load) -> None:
    service = load()
    service.wrapped("ranking", MisfitTower)
    with pytest.raises(InvalidInput, match="'price' has dtype object"):
        warmup.run(service.version, service.settings, lambda: None)
