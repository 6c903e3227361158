"""Scores of candidates for contexts, against an oracle in float64."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engine.ranking import best
from service.engine.requests import Ranked, Ranking, Target
from service.errors import InvalidArgument, NotFound, TooLarge
from tests.service import oracles
from tests.service.running import CALL, Running, column
from tests.service.small_bundle import SmallBundle

Write = Callable[..., SmallBundle]
Run = Callable[..., Running]


def rank(service: Running, **request: Any) -> Ranked:
    return service.ask(service.engine.rank(Ranking(Target(), **request), CALL))


@pytest.mark.parametrize("id_kind", ["int64", "string"])
def test_rank_by_ids_scores_each_candidate_with_its_own_context(write: Write, run: Run, id_kind: str) -> None:
    small = write(id_kind=id_kind)
    movies = small.ids.tolist()
    contexts: list[dict[str, Any]] = [
        {"user": 3, "liked": {movies[1]: 2.0, movies[2]: -0.5}, "recent": movies[5:9], "hour": 3.0, "mood": (0.1, 0.2)},
        {"user": 8, "liked": {}, "recent": movies[:1], "hour": 7.0, "mood": (0.3, 0.4)},
        {"user": 999, "liked": {movies[4]: 1.0}, "recent": [], "hour": 9.0, "mood": (0.5, 0.6)},
    ]
    liked = [each["liked"] for each in contexts]
    recent = [each["recent"] for each in contexts]
    context = {
        "user": column(3, 8, 999),
        "liked": column(*[m for each in liked for m in each], offsets=[0, 2, 2, 3], weights=[2.0, -0.5, 1.0]),
        "recent": column(*[m for each in recent for m in each], offsets=[0, 4, 5, 5]),
        "hour": column(3.0, 7.0, 9.0),
        "mood": column(0.1, 0.2, 0.3, 0.4, 0.5, 0.6),
    }
    asked = [movies[place] for place in (0, 7, 1, 7, 30, 39)]
    offsets = [0, 3, 3, 6]
    service = run()
    answer = rank(
        service,
        context=context,
        candidate_ids=np.array(asked, small.ids.dtype),
        offsets=np.array(offsets),
        heads=("watch", "rating"),
    )
    owners = [0, 0, 0, 2, 2, 2]
    expected = [oracles.ranked(small, movie, **contexts[owner]) for movie, owner in zip(asked, owners, strict=True)]
    np.testing.assert_allclose(answer.scores, [each["score"] for each in expected], 1e-5, 1e-5)
    for head in ("watch", "rating"):
        np.testing.assert_allclose(answer.heads[head], [each[head] for each in expected], 1e-5, 1e-5)
    assert set(answer.heads) == {"watch", "rating"}
    assert answer.ids is not None
    assert answer.ids.tolist() == asked
    assert answer.positions.tolist() == [0, 1, 2, 0, 1, 2]
    assert answer.offsets.tolist() == offsets
    assert service.value("rowcast_unknown_ids_total", model="movies", feature="user") == 1


def test_rank_for_the_k_best_orders_them_and_tells_where_they_were(write: Write, run: Run) -> None:
    small = write()
    asked = small.ids[[5, 9, 2, 30, 11, 7, 8]]
    context = {"user": column(1, 2)}
    answer = rank(run(), context=context, candidate_ids=asked, offsets=np.array([0, 4, 7]), k=2)
    assert answer.offsets.tolist() == [0, 2, 4]
    for owner, (first, last) in enumerate([(0, 4), (4, 7)]):
        scores = [oracles.ranked(small, movie, owner + 1)["score"] for movie in asked[first:last].tolist()]
        order = sorted(range(len(scores)), key=lambda place: -scores[place])[:2]
        assert answer.positions[2 * owner : 2 * owner + 2].tolist() == order
        assert answer.ids is not None
        assert answer.ids[2 * owner : 2 * owner + 2].tolist() == asked[first:last][order].tolist()


def test_rank_with_features_sent_overrides_the_store(write: Write, run: Run) -> None:
    small = write()
    movies = small.ids[:2].tolist()
    genres = column("drama", "opera", offsets=[0, 1, 2])
    candidates = {"genres": genres, "year": column(0.9, 0.1)}
    answer = rank(run(), context={"user": column(1)}, candidate_ids=small.ids[:2], candidates=candidates)
    expected = [
        oracles.ranked(small, movies[0], 1, genres=["drama"], year=np.float32(0.9))["score"],
        oracles.ranked(small, movies[1], 1, genres=["opera"], year=np.float32(0.1))["score"],
    ]
    np.testing.assert_allclose(answer.scores, expected, 1e-5, 1e-5)


def test_rank_by_features_alone_needs_no_ids(write: Write, run: Run) -> None:
    small = write()
    candidates = {
        "movie": column(*small.ids[:2].tolist()),
        "genres": column(offsets=[0, 0, 0]),
        "year": column(0.5, 0.25),
    }
    answer = rank(run(), context={"user": column(1)}, candidates=candidates)
    expected = [
        oracles.ranked(small, movie, 1, genres=[], year=year)["score"]
        for movie, year in zip(small.ids[:2].tolist(), (0.5, 0.25), strict=True)
    ]
    np.testing.assert_allclose(answer.scores, expected, 1e-5, 1e-5)
    assert answer.ids is None


def test_rank_with_every_feature_sent_takes_ids_as_mere_labels(write: Write, run: Run) -> None:
    small = write()
    candidates = {"movie": column(int(small.ids[0])), "genres": column(offsets=[0, 0]), "year": column(0.5)}
    labels = np.array(["a label"], object)
    answer = rank(run(), context={"user": column(1)}, candidates=candidates, candidate_ids=labels)
    assert answer.ids is not None
    assert answer.ids.tolist() == ["a label"]


def test_rank_of_no_candidates_answers_with_none(write: Write, run: Run) -> None:
    write()
    none = np.empty(0, np.int64)
    answer = rank(run(), context={"user": column(1)}, candidate_ids=none, heads=("watch",), k=3)
    assert answer.scores.size == answer.heads["watch"].size == 0
    assert answer.offsets.tolist() == [0, 0]


def test_rank_many_candidates_runs_in_parts_that_change_nothing(
    write: Write, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = write()
    whole = rank(run(), context={"user": column(1)}, candidate_ids=small.ids)
    monkeypatch.setattr("service.engine.rooms._ROWS_MAX", 7)
    parts = rank(run(), context={"user": column(1)}, candidate_ids=small.ids)
    assert parts.scores.tobytes() == whole.scores.tobytes()


def test_rank_calls_of_other_and_of_equal_sizes_in_turns_have_the_bits_of_each_alone(write: Write, run: Run) -> None:
    small = write()
    service = run()
    several = {"offsets": np.array([0, 4, 9])}
    asked: list[dict[str, Any]] = [
        {"context": {"user": column(user)}, "candidate_ids": small.ids[user : user + m], "heads": heads}
        for user, m, heads in ((1, 9, ()), (2, 9, ("watch",)), (3, 4, ()), (4, 9, ()), (5, 9, ("watch",)), (6, 4, ()))
    ]
    asked.insert(3, {"context": {"user": column(7, 8)}, "candidate_ids": small.ids[:9], **several})
    for request in asked:
        kept, alone = rank(service, **request), rank(run(), **request)
        assert kept.scores.tobytes() == alone.scores.tobytes()
        assert {name: each.tobytes() for name, each in kept.heads.items()} == {
            name: each.tobytes() for name, each in alone.heads.items()
        }


@pytest.mark.parametrize(
    ("request_", "kind", "message"),
    [
        ({}, InvalidArgument, "candidate_ids, by their features, or by both; got neither"),
        ({"candidate_ids": np.array([1000, 5])}, InvalidArgument, "candidate 5 is not in corpus 'movies'"),
        ({"candidate_ids": np.full(31, 1000)}, TooLarge, "31 candidates in one request; at most 30 .*candidates_max"),
        ({"candidate_ids": np.array([1000]), "offsets": np.array([0, 2])}, InvalidArgument, "candidates: offsets"),
        ({"candidate_ids": np.array([1000]), "offsets": np.array([0])}, InvalidArgument, "no query"),
        (
            {"candidate_ids": np.array([1000] * 2), "offsets": np.array([0, 2, 1, 2])},
            InvalidArgument,
            "never fall",
        ),
        ({"candidate_ids": np.array([1000]), "heads": ("wach",)}, InvalidArgument, "'wach' .* did you mean 'watch'"),
        ({"candidate_ids": np.array([1000]), "tower": "query"}, NotFound, "no ranking tower 'query'; it has 'ranking'"),
        ({"candidate_ids": np.array([1000]), "k": 5000}, InvalidArgument, "k is 5000"),
        ({"candidate_ids": np.array([1000]), "context": {}}, InvalidArgument, "'user'.*must be sent"),
        ({"candidate_ids": np.array([1000]), "context": {"year": column(1.0)}}, InvalidArgument, "context feature"),
        ({"candidates": {"user": column(1)}}, InvalidArgument, "candidate feature 'user'"),
        ({"candidates": {"movie": column(1000)}}, InvalidArgument, "must be sent"),
        ({"candidates": {"movie": column(3), "year": column(0.1), "genres": column()}}, InvalidArgument, "'movie'.*3"),
    ],
)
def test_rank_refused_names_what_is_wrong(
    write: Write, run: Run, request_: dict[str, Any], kind: type[Exception], message: str
) -> None:
    write()
    with pytest.raises(kind, match=message):
        rank(run(candidates_max=30), **{"context": {"user": column(1)}, **request_})


@given(
    st.lists(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0]), max_size=6), min_size=1, max_size=5),
    st.integers(min_value=1, max_value=7),
)
def test_best_of_each_context_is_what_sorting_each_alone_gives(contexts: list[list[float]], k: int) -> None:
    scores = np.array([score for each in contexts for score in each], np.float32)
    offsets = np.concatenate([[0], np.cumsum([len(each) for each in contexts])]).astype(np.int64)
    chosen, cut = best(scores, offsets, k)
    expected = []
    for owner, each in enumerate(contexts):
        places = range(len(each)) if k == 0 else sorted(range(len(each)), key=lambda place: (-each[place], place))[:k]
        expected.append([int(offsets[owner]) + place for place in places])
    assert [chosen[first:last].tolist() for first, last in pairwise(cut)] == expected
