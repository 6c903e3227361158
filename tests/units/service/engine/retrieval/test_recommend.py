"""Retrieve, then rank, against the reference model, which does both in loops; and what short
deadlines leave.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from service.engine.retrieval import reordering
from tests.units.service.engine.served import Served, SlowTower, column

Load = Callable[..., Served]


def ranked(service: Served, users: int = 1, **request: Any) -> Any:
    return service.recommend(context={"user": column(*range(2, 2 + users))}, **request)


def slow(load: Load) -> tuple[Served, SlowTower]:
    """A service that knows what its slow ranking tower takes."""
    service = load()
    (network,) = service.wrapped("ranking", SlowTower).values()
    ranked(service, k=5, pool_size=10)
    return service, network


def test_short_deadline_ranks_the_best_retrieved_and_appends_the_rest_in_order_of_retrieval(
    load: Load,
) -> None:
    service, network = slow(load)
    result = ranked(service, k=40, timeout_s=2)
    count = network.examples[-1]
    assert 0 < count < 20
    assert f"{count} of 40 candidates are ranked" in result.degraded_reason
    assert "the others follow in the order of retrieval" in result.degraded_reason
    retrieved = service.retrieve(context={"user": column(2)}, k=40)
    ids = result.ids.tolist()
    scores = result.scores
    assert set(ids[:count]) == set(retrieved.ids[:count].tolist())
    expected = service.rank(context={"user": column(2)}, candidate_ids=retrieved.ids[:count]).scores
    np.testing.assert_array_equal(scores[:count], np.sort(expected)[::-1])
    assert ids[count:] == retrieved.ids[count:].tolist()
    np.testing.assert_array_equal(scores[count:], retrieved.scores[count:])
    assert service.value("rowcast_degraded_total", model="movies") == 1


def test_deadline_that_is_too_short_for_diversity_drops_it_first(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = load(size=200)
    quick = reordering.pick_diverse

    def slow_diverse(*arguments: Any) -> list[int]:
        time.sleep(2)
        return quick(*arguments)

    monkeypatch.setattr(reordering, "pick_diverse", slow_diverse)
    plain = ranked(service, k=9, pool_size=100).ids.tolist()
    diverse = ranked(service, k=9, pool_size=100, diversity=0.9)
    assert diverse.degraded_reason == ""
    assert diverse.ids.tolist() != plain

    hurried = ranked(service, k=9, pool_size=100, diversity=0.9, timeout_s=3.5)
    assert hurried.ids.tolist() == plain
    assert "ranking and diversity take about 2" in hurried.degraded_reason
    assert "the list is not made diverse" in hurried.degraded_reason
    assert service.value("rowcast_degraded_total", model="movies") == 1


def test_deadline_that_leaves_no_time_to_rank_gets_the_order_of_retrieval_under_crowding(
    load: Load,
) -> None:
    service, network = slow(load)
    before = list(network.examples)
    result = ranked(service, users=8, k=6, pool_size=40, crowding={"studio": 1}, timeout_s=1.5)
    assert result.degraded_reason.startswith("0 of 320 candidates are ranked")
    assert network.examples == before
    retrieved = service.retrieve(
        context={"user": column(*range(2, 10))}, k=6, pool_size=40, crowding={"studio": 1}
    )
    assert result.ids.tolist() == retrieved.ids.tolist()
    assert result.scores.tolist() == retrieved.scores.tolist()


def test_long_deadline_ranks_all_though_the_tower_is_slow(load: Load) -> None:
    service, network = slow(load)
    assert ranked(service, k=5, pool_size=12, timeout_s=60).degraded_reason == ""
    assert network.examples[-1] == 12
