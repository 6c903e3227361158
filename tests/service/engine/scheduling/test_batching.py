"""Requests that are merged: which can be, that nothing is lost, and that each gets its own part of
the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bundle.features.reader import Column
from service.engine.calls import Embedding, IdLists, NotFoundRule, Ranking, Retrieval, Target
from service.engine.scheduling import batching
from tests.service.engine.served import Served

TARGET = Target("m")


def ints(*values: int) -> Column:
    return Column(np.array(values, np.int64))


def bag(*values: int) -> Column:
    return Column(np.array(values, np.int64), np.array([0, len(values)], np.int64))


def retrieval(user: int, *history: int, **options: Any) -> Retrieval:
    return Retrieval(TARGET, context={"user": ints(user), "history": bag(*history)}, **options)


def ranking(user: int, *ids: int, **options: Any) -> Ranking:
    sizes = [1 + each % 3 for each in ids]
    genres = Column(
        np.array(["drama"] * sum(sizes), object), np.concatenate([[0], np.cumsum(sizes)])
    )
    options = {"candidate_ids": np.array(ids, np.int64), **options}
    candidates = {"genres": genres, "year": Column(np.array(ids, np.float32))}
    return Ranking(TARGET, {"user": ints(user)}, candidate_features=candidates, **options)


def test_batch_key_of_requests_that_differ_in_ids_and_numbers_is_equal() -> None:
    assert batching.batch_key(retrieval(1, 2, 3)) == batching.batch_key(retrieval(4))
    assert batching.batch_key(ranking(1, 2, 3)) == batching.batch_key(ranking(4, 5))
    skipping = ranking(1, 2, not_found=NotFoundRule.SKIP)
    assert batching.batch_key(skipping) != batching.batch_key(ranking(1, 2))
    assert batching.batch_key(skipping) == batching.batch_key(replace(skipping, target=Target("n")))
    # It says nothing of a retrieval without ids.
    options = {"not_found": NotFoundRule.SKIP}
    assert batching.batch_key(retrieval(1, **options)) == batching.batch_key(retrieval(1))


@pytest.mark.parametrize(
    "other",
    [
        retrieval(1, k=3),
        retrieval(1, index="second"),
        retrieval(1, attributes=("title",)),
        Retrieval(TARGET, context={"user": ints(1)}),
        Retrieval(TARGET, context={"user": Column(np.array([1.0], np.float32)), "history": bag()}),
        ranking(1, 2),
    ],
)
def test_batch_key_of_another_form_differs(other: Any) -> None:
    assert batching.batch_key(other) != batching.batch_key(retrieval(1))


@pytest.mark.parametrize(
    "alone",
    [
        retrieval(1, exact=True),
        retrieval(1, exclude_ids=IdLists(np.array([1]))),
        Retrieval(TARGET, vectors=np.ones((1, 2), np.float32)),
        Retrieval(TARGET, context={"user": ints(1, 2)}),
        Retrieval(
            TARGET,
            context={"bag": Column(np.array([1]), np.array([0, 1]), np.array([0.5], np.float32))},
        ),
        ranking(1, *range(batching.RANKED_MAX + 1)),
        replace(ranking(1, 2, 3), offsets=np.array([0, 1, 2])),
        replace(ranking(1, 2), context_ids=np.array([1])),
        Ranking(
            TARGET,
            {"user": ints(1)},
            candidate_features={"year": ints(1, 2, 3)},
            candidate_ids=np.array([1, 2]),
        ),
        Embedding(TARGET, "query", {"user": ints(1)}),
    ],
)
def test_batch_key_of_requests_that_cannot_be_merged_is_none(alone: Any) -> None:
    assert batching.batch_key(alone) is None


def assert_same(found: Any, expected: Any) -> None:
    for name, value in vars(expected).items():
        if isinstance(value, np.ndarray):
            assert getattr(found, name).tobytes() == value.tobytes()


def test_split_of_merged_retrievals_gives_each_what_it_gets_alone(
    load: Callable[..., Served],
) -> None:
    service = load()
    options = {"k": 3, "attributes": ("title",)}
    requests = [
        retrieval(1, 1000, 1007, **options),
        retrieval(2, **options),
        retrieval(3, 1014, **options),
    ]
    merged = service.retrieve(context=batching.merge(requests).context, **options)
    for request, found in zip(requests, batching.split(merged, 3), strict=True):
        expected = service.retrieve(context=request.context, **options)
        assert (found.model, found.version, found.searched) == (
            expected.model,
            expected.version,
            expected.searched,
        )
        assert found.attributes == expected.attributes
        assert_same(found, expected)
    with pytest.raises(ValueError, match="3 requests were answered, 2 were merged"):
        batching.split(merged, 2)


def test_split_of_merged_rankings_gives_each_what_it_gets_alone(
    load: Callable[..., Served],
) -> None:
    service = load()
    names = ("context", "candidate_features", "candidate_ids", "offsets", "heads")
    requests = [ranking(1, 1000, 1007, heads=("watch",)), ranking(4, 1014, heads=("watch",))]
    answers = [
        service.rank(**{name: getattr(each, name) for name in names})
        for each in (batching.merge(requests), *requests)
    ]
    for found, expected in zip(batching.split(answers[0], 2), answers[1:], strict=True):
        assert found.heads["watch"].tobytes() == expected.heads["watch"].tobytes()
        assert_same(found, expected)


def test_split_of_merged_rankings_gives_each_the_ids_that_it_skips(
    load: Callable[..., Served],
) -> None:
    service = load()

    def compute(request: Ranking) -> Any:
        fields = dict(vars(request))
        del fields["target"]
        return service.rank(**fields)

    requests = [
        Ranking(TARGET, {"user": ints(1)}, np.array(ids), not_found=NotFoundRule.SKIP)
        for ids in ([1000, 1, 1007], [1014], [2, 2])
    ]
    assert len({batching.batch_key(request) for request in requests}) == 1
    parts = batching.split(compute(batching.merge(requests)), len(requests))
    for part, request, skipped in zip(parts, requests, ([1], [], [2, 2]), strict=True):
        assert part.not_found.ids.tolist() == skipped
        assert part.not_found.offsets.tolist() == [0, len(skipped)]
        assert_same(part, compute(request))
