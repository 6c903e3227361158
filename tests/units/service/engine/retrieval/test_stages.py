"""Recommendations with a stage before the ranking, against rankings by both towers; and what
becomes of a stage that is late, or of candidates that it cannot score.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from service.engine.calls import IdLists, Source
from service.engine.examples import example_bodies
from service.engine.signatures import describe
from service.errors import InvalidArgument
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


def test_best_of_the_stage_are_ranked(load: Load) -> None:
    service = load(keep=7)
    best = rated(service, service.small.ids)
    assert [*recommended(service, k=5).ids] == ranked(service, best[:7], 5)
    assert [*recommended(service, k=5, keep=9).ids] == ranked(service, best[:9], 5)
    everything = recommended(service, k=5, skip_stage=True)
    assert [*everything.ids] == ranked(service, service.small.ids, 5)
    assert [*everything.ids] != ranked(service, best[:7], 5), "the stage makes a difference"
    assert service.rank(context={"user": USER}, candidate_ids=service.small.ids).ids.size == 40


def test_stage_keeps_what_a_list_without_pages_returns(load: Load) -> None:
    service = load(keep=7)
    best = rated(service, service.small.ids)
    assert [*recommended(service, k=20).ids] == ranked(service, best[:20], 20)
    with pytest.raises(InvalidArgument, match="keep of the bundle is 7, fewer than offset"):
        recommended(service, k=5, offset=5)
    pages = [recommended(service, k=5, offset=offset, keep=10).ids for offset in (0, 5)]
    assert [*np.concatenate(pages)] == ranked(service, best[:10], 10)


def test_contexts_that_have_no_more_than_the_stage_keeps_are_not_scored_by_it(load: Load) -> None:
    service = load(keep=7)
    (counter,) = service.counted("quick").values()
    first = service.small.ids[:5]
    many = service.small.ids[:20]
    lists = IdLists(np.concatenate([first, many]), np.array([0, 5, 25], np.int64))
    sources = (Source(ids=lists), Source(index="", pool_size=1, fallback=True))
    result = service.recommend(context={"user": column(2, 2)}, k=5, sources=sources)
    assert counter.examples == [20]
    assert [*result.ids[:5]] == ranked(service, first, 5)
    assert [*result.ids[5:]] == ranked(service, rated(service, many)[:7], 5)
    for outcome, count in (("kept", 7), ("dropped", 13)):
        labels = {"model": "movies", "tower": "quick", "outcome": outcome}
        assert service.value("rowcast_stage_candidates_total", **labels) == count
    assert service.value("rowcast_examples_total", call="recommend") == 2


def test_minimum_of_a_source_is_met_whatever_the_stage_drops(load: Load) -> None:
    service = load(keep=4)
    best = rated(service, service.small.ids)
    last, worst = best[-2:]
    unloved = IdLists(np.array([worst, last]))

    def answered(min_count: int) -> Any:
        listed = Source(ids=unloved, min_count=min_count, name="unloved")
        nearest = Source(index="", pool_size=40)
        return recommended(service, k=4, pool_size=0, sources=(listed, nearest))

    assert [*answered(0).ids] == ranked(service, best[:4], 4)
    with_minimum = answered(1)
    assert {*with_minimum.ids} == {last, *ranked(service, best[:4], 3)}
    assert [*with_minimum.ids] == ranked(service, with_minimum.ids, 4)


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


def test_candidates_that_the_stage_cannot_score_are_left_out(load: Load) -> None:
    service = load(keep=7, lost_rows={"movies": 4})
    lost = service.small.ids[3]
    result = recommended(service, k=7)
    assert "1 of 40 candidates are left out, because they read rows" in result.degraded_reason
    finite = service.small.ids[service.small.ids != lost]
    assert [*result.ids] == ranked(service, rated(service, finite)[:7], 7)


def test_list_is_as_long_as_crowding_of_the_whole_pool_permits(load: Load) -> None:
    service = load(keep=7)
    attributes = {"attributes": ("studio",), "crowding": {"studio": 1}}
    result = recommended(service, k=7, **attributes)
    assert result.ids.size == 7
    assert len({*result.attributes["studio"]} - {None}) == 7 - result.attributes["studio"].count(
        None
    )
    least = float(result.scores[3])
    assert recommended(service, k=7, min_score=least, **attributes).ids.size == 4


def test_explanation_of_a_short_list_says_what_the_stage_dropped(load: Load) -> None:
    service = load(keep=7)
    least = float(recommended(service, k=7).scores[3])
    (explanation,) = recommended(service, k=7, min_score=least, explain=True).explanations
    assert explanation.shortfall == (
        "only 4 candidates pass min_score; stage 'quick' has dropped 33 candidates of the pool"
    )
    (explanation,) = recommended(service, k=5, explain=True).explanations
    assert explanation.shortfall == ""


@pytest.mark.parametrize(
    ("request_fields", "message"),
    [
        ({"keep": -1}, "keep is -1; at least 0"),
        ({"keep": 4}, "keep is 4, fewer than k, which is 5; at least k was expected"),
        ({"keep": 9, "skip_stage": True}, "keep is 9, and skip_stage is true; leave it out"),
        ({"keep": 9, "tower": "quick"}, "keep is 9, and no stage comes before 'quick'; leave it"),
        ({"keep": 6, "offset": 2}, "fewer than offset + k, which is 7; at least offset + k, the"),
    ],
)
def test_request_that_the_stage_cannot_serve_is_rejected(
    load: Load, request_fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgument) as problem:
        recommended(load(keep=7), k=5, **request_fields)
    assert message in str(problem.value)
    assert [violation.field for violation in problem.value.violations] == ["keep"]


def test_stage_is_described_and_requests_need_not_name_the_tower_behind_it(load: Load) -> None:
    version = load(keep=7).version
    (stage,) = describe(version)["stages"]
    assert stage == {"before": "ranking", "tower": "quick", "keep": 7, "recall_k": 0, "recall": 0.0}
    assert example_bodies(version)["recommend"]["tower"] == "ranking"
