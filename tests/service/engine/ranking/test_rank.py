"""Scores of candidates for contexts, against the reference model in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from service.errors import InvalidArgument, TooLarge
from tests.service import reference
from tests.service.engine.served import Served, column

Load = Callable[..., Served]


@pytest.mark.parametrize("id_kind", ["int64", "string"])
def test_rank_of_several_contexts_scores_each_candidate_with_its_own(
    load: Load, id_kind: str
) -> None:
    service = load(id_kind=id_kind)
    movies = service.small.ids[[0, 7, 1]]
    offsets = [0, 2, 2, 3]
    answer = service.rank(
        context={"user": column(3, 8, 999)}, candidate_ids=movies, offsets=np.array(offsets)
    )
    pairs = zip(movies.tolist(), (3, 3, 999), strict=True)
    expected = [reference.ranked(service.small, movie, user)["score"] for movie, user in pairs]
    np.testing.assert_allclose(answer.scores, expected, 1e-5, 1e-5)
    assert (answer.ids.tolist(), answer.positions.tolist()) == (movies.tolist(), [0, 1, 0])
    assert answer.offsets.tolist() == offsets
    assert service.value("rowcast_oov_ids_total", model="movies", feature="user") == 1


def test_rank_with_every_feature_sent_takes_ids_as_labels(load: Load) -> None:
    service = load()
    candidates = {
        "movie": column(int(service.small.ids[0])),
        "genres": column(offsets=[0, 0]),
        "year": column(0.5),
    }
    labels = np.array(["a label"], object)
    answer = service.rank(
        context={"user": column(1)}, candidate_features=candidates, candidate_ids=labels
    )
    assert answer.ids.tolist() == ["a label"]


def test_rank_of_no_candidates_is_empty(load: Load) -> None:
    none = np.empty(0, np.int64)
    answer = load().rank(context={"user": column(1)}, candidate_ids=none, heads=("watch",), k=3)
    assert answer.scores.size == answer.heads["watch"].size == 0
    assert answer.offsets.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("request_", "kind", "message"),
    [
        ({}, InvalidArgument, "set candidate_ids, candidate_features, or both"),
        (
            {"candidate_ids": np.full(31, 1000)},
            TooLarge,
            "the request has 31 candidates; at most 30 .*max_candidates",
        ),
        (
            {"candidate_ids": np.array([1000]), "offsets": np.array([0, 2])},
            InvalidArgument,
            "candidates: offsets",
        ),
        (
            {"candidate_ids": np.array([1000]), "heads": ("wach",)},
            InvalidArgument,
            "'wach' .* did you mean 'watch'",
        ),
    ],
)
def test_rank_invalid_request_is_rejected_with_what_is_wrong(
    load: Load, request_: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        load({"max_candidates": 30}).rank(**{"context": {"user": column(1)}, **request_})
