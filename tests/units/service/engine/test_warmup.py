"""Synthetic requests that a version computes before it is served."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from numpy.typing import NDArray

from runtime.errors import InvalidInput
from service.engine import warmup
from tests.bundles.small import SmallBundle
from tests.units.service.engine.served import CountingTower
from tests.units.service.running import RunningService

Serve = Callable[..., RunningService]
Write = Callable[..., SmallBundle]


class MisfitTower(CountingTower):
    """Does not fit the manifest."""

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        raise InvalidInput("'price' has dtype object")


def test_tower_that_does_not_fit_its_manifest_keeps_a_version_from_service(
    write: Write, serve: Serve
) -> None:
    write()
    service = serve()
    service.with_network(
        "ranking", MisfitTower(service.current().towers["ranking"].parts[0].network)
    )
    with pytest.raises(InvalidInput, match="'price'"):
        warmup.run(service.current(), service.settings, lambda: None)


def test_formula_without_a_value_for_synthetic_candidates_is_no_failure(
    write: Write, serve: Serve
) -> None:
    write(formula="log(watch - 1000)")
    service = serve()
    assert service.states() == {1: "available"}
