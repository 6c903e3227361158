"""Recommendations with a stage before the ranking, against rankings by both towers; and what
becomes of a stage that is late, or of candidates that it cannot score.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from service.engine.examples import example_bodies
from service.engine.signatures import describe
from tests.units.service.engine.served import Served, SlowTower, column

Load = Callable[..., Served]
USER = column(2)


def recommended(service: Served, **request: Any) -> Any:
    return service.recommend(**{"context": {"user": USER}, "pool_size": 40, **request})


def rated(service: Served, ids: Any) -> list[Any]:
    """Candidates by their rating, best first: that is what the stage orders by."""
    ranking = service.rank(
        context={"user": USER}, candidate_ids=ids, heads=("rating",), tower="ranking"
    )
    return [*ids[np.argsort(-ranking.heads["rating"])]]


def ranked(service: Served, ids: Any, k: int) -> list[Any]:
    """The k candidates that the ranking tower finds best."""
    candidates = np.array(ids)
    result = service.rank(context={"user": USER}, candidate_ids=candidates, k=k, tower="ranking")
    return [*result.ids]


def test_late_stage_is_left_out_and_the_first_of_the_retrieval_are_ranked(load: Load) -> None:
    service = load(keep=7)
    (network,) = service.wrapped("quick", SlowTower).values()
    recommended(service, k=5, pool_size=10)
    assert network.examples == [10]
    result = recommended(service, k=5, timeout_s=2)
    assert network.examples == [10]
    assert result.degraded_reason.startswith("stage 'quick' is left out: ")
    assert "the first 7 candidates are kept in the order of retrieval" in result.degraded_reason
    retrieved = service.retrieve(context={"user": USER}, k=7)
    assert [*result.ids] == ranked(service, retrieved.ids, 5)
    assert service.value("rowcast_degraded_total", model="movies") == 1


def test_late_ranking_leaves_the_order_of_the_stage(load: Load) -> None:
    service = load(keep=30)
    (network,) = service.wrapped("ranking", SlowTower).values()
    recommended(service, k=5, pool_size=10)
    result = recommended(service, k=30, timeout_s=2)
    count = network.examples[-1]
    assert 0 < count < 20
    assert f"{count} of 30 candidates are ranked" in result.degraded_reason
    assert "the others follow in the order of stage 'quick'" in result.degraded_reason
    best = rated(service, service.small.ids)
    assert {*result.ids[:count]} == {*best[:count]}
    assert [*result.ids[count:]] == best[count:30]
    ratings = service.rank(context={"user": USER}, candidate_ids=np.array(best), tower="quick")
    np.testing.assert_array_equal(result.scores[count:], ratings.scores[count:30])


def test_stage_is_described_and_requests_need_not_name_the_tower_behind_it(load: Load) -> None:
    version = load(keep=7).version
    (stage,) = describe(version)["stages"]
    assert stage == {"before": "ranking", "tower": "quick", "keep": 7, "recall_k": 0, "recall": 0.0}
    assert example_bodies(version)["recommend"]["tower"] == "ranking"
