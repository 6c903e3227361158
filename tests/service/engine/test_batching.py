"""Requests that are merged: which can be, that nothing is lost, and that each gets its own part of the answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bundle.features import Column
from service.engine import batching
from service.engine.requests import (
    Embedding,
    Exclusion,
    Neighbors,
    Ranked,
    Ranking,
    Retrieval,
    Retrieved,
    Target,
)

TARGET = Target("m")


def ints(*values: int) -> Column:
    return Column(np.array(values, np.int64))


def bag(*values: int) -> Column:
    return Column(np.array(values, np.int64), np.array([0, len(values)], np.int64))


def retrieval(user: int, *history: int, **options: Any) -> Retrieval:
    return Retrieval(TARGET, features={"user": ints(user), "history": bag(*history)}, **options)


def ranking(user: int, *ids: int, **options: Any) -> Ranking:
    sizes = [1 + each % 3 for each in ids]
    genres = Column(np.arange(sum(sizes)), np.concatenate([[0], np.cumsum(sizes)]))
    options = {"candidate_ids": np.array(ids, np.int64), **options}
    return Ranking(TARGET, {"user": ints(user)}, candidates={"genres": genres, "year": ints(*ids)}, **options)


def test_batch_key_of_requests_that_differ_in_ids_and_numbers_is_equal() -> None:
    assert batching.batch_key(retrieval(1, 2, 3)) == batching.batch_key(retrieval(4))
    assert batching.batch_key(ranking(1, 2, 3)) == batching.batch_key(ranking(4, 5))


@pytest.mark.parametrize(
    "other",
    [
        retrieval(1, k=3),
        retrieval(1, index="second"),
        retrieval(1, attributes=("title",)),
        Retrieval(TARGET, features={"user": ints(1)}),
        Retrieval(TARGET, features={"user": Column(np.array([1.0], np.float32)), "history": bag()}),
        ranking(1, 2),
    ],
)
def test_batch_key_of_another_form_differs(other: Any) -> None:
    assert batching.batch_key(other) != batching.batch_key(retrieval(1))


@pytest.mark.parametrize(
    "alone",
    [
        retrieval(1, exact=True),
        retrieval(1, exclude=Exclusion(np.array([1]))),
        retrieval(1, context_ids=np.array([1])),
        Retrieval(TARGET, vectors=np.ones((1, 2), np.float32)),
        Retrieval(TARGET, ids=np.array([1])),
        Retrieval(TARGET, features={"user": ints(1, 2)}),
        Retrieval(TARGET, features={"bag": Column(np.array([1]), np.array([0, 1]), np.array([0.5], np.float32))}),
        Retrieval(TARGET, features={"bag": Column(np.array([1, 2]), np.array([1, 2]))}),
        ranking(1),
        ranking(1, *range(batching.RANKED_MAX + 1)),
        replace(ranking(1, 2, 3), offsets=np.array([0, 1, 2])),
        replace(ranking(1, 2), context_ids=np.array([1])),
        Ranking(TARGET, {"user": ints(1)}, candidates={"year": ints(1, 2, 3)}, candidate_ids=np.array([1, 2])),
        Embedding(TARGET, "query", {"user": ints(1)}),
    ],
)
def test_batch_key_of_requests_that_cannot_be_merged_is_none(alone: Any) -> None:
    assert batching.batch_key(alone) is None


def test_merge_of_retrievals_keeps_each_query_as_one_example() -> None:
    merged = batching.merge([retrieval(1, 10, 11), retrieval(2), retrieval(3, 12)])
    assert merged.features["user"].values.tolist() == [1, 2, 3]
    assert merged.features["history"].values.tolist() == [10, 11, 12]
    assert merged.features["history"].offsets.tolist() == [0, 2, 2, 3]


def test_merge_of_rankings_keeps_the_candidates_of_each_context() -> None:
    merged = batching.merge([ranking(1, 2, 3), ranking(4, 5)])
    assert merged.context["user"].values.tolist() == [1, 4]
    assert merged.candidate_ids.tolist() == [2, 3, 5]
    assert merged.offsets.tolist() == [0, 2, 3]
    assert merged.candidates["year"].values.tolist() == [2, 3, 5]
    assert merged.candidates["genres"].offsets.tolist() == [0, 3, 4, 7]
    assert merged.candidates["genres"].values.tolist() == [0, 1, 2, 3, 0, 1, 2]


def test_split_gives_each_its_own_neighbors() -> None:
    neighbors = Neighbors(
        np.array([7, 8, 9]), np.array([3, 2, 1], np.float32), np.array([0, 2, 3]), {"title": ["a", "b", "c"]}
    )
    first, second = batching.split(Retrieved("m", 1, neighbors, 5), 2)
    assert (first.neighbors.ids.tolist(), first.neighbors.offsets.tolist()) == ([7, 8], [0, 2])
    assert (second.neighbors.ids.tolist(), second.neighbors.attributes) == ([9], {"title": ["c"]})
    assert (second.model, second.version, second.searched) == ("m", 1, 5)


def test_split_gives_each_its_own_scores() -> None:
    scores = np.array([3, 2, 1], np.float32)
    answer = Ranked(
        "m", 1, np.array([7, 8, 9]), np.array([0, 1, 0], np.int32), scores, {"h": -scores}, np.array([0, 2, 3])
    )
    first, second = batching.split(answer, 2)
    assert (first.ids.tolist(), first.scores.tolist(), first.heads["h"].tolist()) == ([7, 8], [3, 2], [-3, -2])
    assert (second.positions.tolist(), second.offsets.tolist()) == ([0], [0, 1])


def test_split_of_an_answer_to_another_number_of_requests_fails() -> None:
    neighbors = Neighbors(np.array([7]), np.array([3], np.float32), np.array([0, 1]))
    with pytest.raises(ValueError, match="1 requests were answered, 2 were merged"):
        batching.split(Retrieved("m", 1, neighbors, 5), 2)
