"""Scores of candidates for contexts, against the reference model in float64."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bundle.errors import FeatureError
from service.engine.ranking import best
from service.errors import InvalidArgument, NotFound, TooLarge
from tests.service import oracles
from tests.service.engine.served import Served, column

Load = Callable[..., Served]


@pytest.mark.parametrize("id_kind", ["int64", "string"])
def test_rank_by_ids_scores_each_candidate_with_its_own_context(load: Load, id_kind: str) -> None:
    service = load(id_kind=id_kind)
    small = service.small
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
    answer = service.rank(
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
    assert service.value("rowcast_oov_ids_total", model="movies", feature="user") == 1


def test_rank_for_the_k_best_orders_them_and_returns_their_positions(load: Load) -> None:
    service = load()
    asked = service.small.ids[[5, 9, 2, 30, 11, 7, 8]]
    context = {"user": column(1, 2)}
    answer = service.rank(context=context, candidate_ids=asked, offsets=np.array([0, 4, 7]), k=2)
    assert answer.offsets.tolist() == [0, 2, 4]
    for owner, (first, last) in enumerate([(0, 4), (4, 7)]):
        scores = [oracles.ranked(service.small, movie, owner + 1)["score"] for movie in asked[first:last].tolist()]
        order = sorted(range(len(scores)), key=lambda place: -scores[place])[:2]
        assert answer.positions[2 * owner : 2 * owner + 2].tolist() == order
        assert answer.ids is not None
        assert answer.ids[2 * owner : 2 * owner + 2].tolist() == asked[first:last][order].tolist()


def test_rank_with_features_sent_overrides_the_store(load: Load) -> None:
    service = load()
    movies = service.small.ids[:2].tolist()
    genres = column("drama", "opera", offsets=[0, 1, 2])
    candidates = {"genres": genres, "year": column(0.9, 0.1)}
    answer = service.rank(context={"user": column(1)}, candidate_ids=service.small.ids[:2], candidates=candidates)
    expected = [
        oracles.ranked(service.small, movies[0], 1, genres=["drama"], year=np.float32(0.9))["score"],
        oracles.ranked(service.small, movies[1], 1, genres=["opera"], year=np.float32(0.1))["score"],
    ]
    np.testing.assert_allclose(answer.scores, expected, 1e-5, 1e-5)


def test_rank_by_features_alone_needs_no_ids(load: Load) -> None:
    service = load()
    candidates = {
        "movie": column(*service.small.ids[:2].tolist()),
        "genres": column(offsets=[0, 0, 0]),
        "year": column(0.5, 0.25),
    }
    answer = service.rank(context={"user": column(1)}, candidates=candidates)
    expected = [
        oracles.ranked(service.small, movie, 1, genres=[], year=year)["score"]
        for movie, year in zip(service.small.ids[:2].tolist(), (0.5, 0.25), strict=True)
    ]
    np.testing.assert_allclose(answer.scores, expected, 1e-5, 1e-5)
    assert answer.ids is None


def test_rank_with_every_feature_sent_takes_ids_as_labels(load: Load) -> None:
    service = load()
    candidates = {"movie": column(int(service.small.ids[0])), "genres": column(offsets=[0, 0]), "year": column(0.5)}
    labels = np.array(["a label"], object)
    answer = service.rank(context={"user": column(1)}, candidates=candidates, candidate_ids=labels)
    assert answer.ids is not None
    assert answer.ids.tolist() == ["a label"]


def test_rank_of_no_candidates_is_empty(load: Load) -> None:
    none = np.empty(0, np.int64)
    answer = load().rank(context={"user": column(1)}, candidate_ids=none, heads=("watch",), k=3)
    assert answer.scores.size == answer.heads["watch"].size == 0
    assert answer.offsets.tolist() == [0, 0]


def test_rank_many_candidates_in_blocks_has_the_same_bits(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    service = load()
    whole = service.rank(context={"user": column(1)}, candidate_ids=service.small.ids)
    monkeypatch.setattr("service.engine.towers._ROWS_MAX", 7)
    parts = service.rank(context={"user": column(1)}, candidate_ids=service.small.ids)
    assert parts.scores.tobytes() == whole.scores.tobytes()


@pytest.mark.parametrize(
    ("request_", "kind", "message"),
    [
        ({}, InvalidArgument, "candidate_ids, by their features, or by both; got neither"),
        ({"candidate_ids": np.array([1000, 5])}, InvalidArgument, "candidate 5 is not in corpus 'movies'"),
        ({"candidate_ids": np.full(31, 1000)}, TooLarge, "31 candidates in one request; at most 30 .*max_candidates"),
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
        ({"candidate_ids": np.array([1000]), "context": {}}, FeatureError, "'user'.*must be sent"),
        ({"candidate_ids": np.array([1000]), "context": {"year": column(1.0)}}, InvalidArgument, "context feature"),
        ({"candidates": {"user": column(1)}}, InvalidArgument, "candidate feature 'user'"),
        ({"candidates": {"movie": column(1000)}}, FeatureError, "must be sent"),
        ({"candidates": {"movie": column(3), "year": column(0.1), "genres": column()}}, FeatureError, "'movie'.*3"),
    ],
)
def test_rank_invalid_request_is_rejected_with_what_is_wrong(
    load: Load, request_: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        load({"max_candidates": 30}).rank(**{"context": {"user": column(1)}, **request_})


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
