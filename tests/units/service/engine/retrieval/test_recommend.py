"""Retrieve, then rank, against the reference model, which does both in loops; and what short
deadlines leave.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from service.engine.calls import IdLists
from service.engine.retrieval import reordering
from service.errors import InvalidArgument, NotFound
from tests.units.service import reference
from tests.units.service.engine.served import Served, SlowTower, column

Load = Callable[..., Served]


def test_recommend_by_default_ranks_ten_times_k_at_least_a_hundred(load: Load) -> None:
    service = load(size=300)
    result = service.recommend(context={"user": column(2)}, k=5)
    (expected,) = reference.responses(service.small, "recommend", {"context": {"user": 2}, "k": 5})
    assert result.ids.tolist() == expected["ids"]
    service.recommend(context={"user": column(2)}, k=20)
    assert service.value("rowcast_candidates_total", call="recommend") == 100 + 200


def test_recommend_of_everything_excluded_is_empty(load: Load) -> None:
    service = load()
    result = service.recommend(context={"user": column(2)}, exclude_ids=IdLists(service.small.ids))
    assert result.offsets.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("without", "message"), [("ranking", "no ranking tower"), ("indexes", "has no index")]
)
def test_recommend_of_a_bundle_without_what_it_needs_is_not_found(
    load: Load, without: str, message: str
) -> None:
    with pytest.raises(NotFound, match=message):
        load(without=frozenset({without})).recommend(context={"user": column(1)})


def ranked(service: Served, users: int = 1, **request: Any) -> Any:
    return service.recommend(context={"user": column(*range(2, 2 + users))}, **request)


def test_formula_takes_outputs_the_retrieval_score_and_attributes(load: Load) -> None:
    service = load()
    plain = ranked(service, k=40, attributes=("year",))
    ranking = service.rank(
        context={"user": column(2)}, candidate_ids=plain.ids, heads=("watch", "rating")
    )
    years = [year or 0 for year in plain.attributes["year"]]
    scores = (
        ranking.heads["watch"]
        + 0.1 * plain.retrieval_scores
        + np.array(years) / 100
        - ranking.heads["rating"]
    )
    recommended = ranked(
        service, k=6, formula="watch + 0.1 * retrieval_score + year / 100 - rating"
    )
    assert recommended.ids.tolist() == plain.ids[np.argsort(-scores)][:6].tolist()
    np.testing.assert_allclose(recommended.scores, np.sort(scores)[::-1][:6], 1e-5)
    with pytest.raises(
        InvalidArgument, match="formula has the unknown name 'title'; an output of tower 'ranking'"
    ):
        ranked(service, formula="title")


def test_formula_without_outputs_runs_no_ranking_tower(load: Load) -> None:
    service = load()
    (counter,) = service.counted().values()
    result = ranked(service, k=6, formula="year - 0 * retrieval_score", attributes=("year",))
    assert (
        result.scores.tolist()
        == result.attributes["year"]
        == [2029 - position for position in range(6)]
    )
    assert counter.examples == []


def test_crowding_diversity_and_min_score_apply_to_the_scores_of_the_ranking(load: Load) -> None:
    service = load(size=200)
    plain = ranked(service, k=200, pool_size=200, attributes=("studio",))
    studios = plain.attributes["studio"]
    chosen_positions = list[int]()
    for position, studio in enumerate(studios):
        if studio is None or studio not in [
            studios[chosen_position] for chosen_position in chosen_positions
        ]:
            chosen_positions.append(position)
    crowded = ranked(service, k=30, pool_size=200, crowding={"studio": 1})
    assert crowded.ids.tolist() == plain.ids[chosen_positions[:30]].tolist()
    least = float(plain.scores[4])
    assert (
        ranked(service, k=30, pool_size=200, min_score=least).ids.tolist() == plain.ids[:5].tolist()
    )
    short_list = ranked(service, k=9, pool_size=9, crowding={"studio": 1})
    assert short_list.ids.size == 9, "the pool of nine has grown"
    diverse = ranked(service, k=9, pool_size=200, diversity=0.9)
    assert diverse.ids[0] == plain.ids[0]
    assert set(diverse.ids.tolist()) != set(plain.ids[:9].tolist())


def slow(load: Load) -> tuple[Served, SlowTower]:
    """A service that knows what its slow ranking tower takes."""
    service = load()
    (network,) = service.wrapped("ranking", SlowTower).values()
    ranked(service, k=5, pool_size=10)
    return service, network


def test_explanation_of_a_short_list_names_what_left_the_others_out(load: Load) -> None:
    service = load()
    crowded = ranked(service, k=30, crowding={"studio": 1}, explain=True)
    (explanation,) = crowded.explanations
    assert explanation.matches == 40
    assert explanation.shortfall == f"only {crowded.ids.size} candidates pass crowding"
    (explanation,) = ranked(
        service, k=5, min_score=1e9, crowding={"studio": 1}, explain=True
    ).explanations
    assert explanation.shortfall == "no candidates pass min_score and crowding"
    (explanation,) = ranked(service, k=5, crowding={"studio": 1}, explain=True).explanations
    assert explanation.shortfall == ""


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
