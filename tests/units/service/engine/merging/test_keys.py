"""Which requests are merged: those that differ in their examples and lists alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bundle.features.columns import Column
from service.engine.calls import (
    Circle,
    Condition,
    EmbeddingRequest,
    Filter,
    IdLists,
    LookupRequest,
    NotFoundRule,
    RankingRequest,
    RetrievalRequest,
    Target,
)
from service.engine.merging.keys import FILTER_SIZE_MAX, batch_key
from service.engine.merging.requests import merge
from service.versions.version import ModelVersion
from tests.bundles.small import write_small_bundle
from tests.units.service.engine.served import column, load_version

TARGET = Target("m")
VECTORS = np.ones((2, 8), np.float32)


@pytest.fixture(scope="module")
def version(small_towers: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("keys")
    write_small_bundle(root, small_towers)
    loaded = load_version(root, "movies", 1)
    yield loaded
    loaded.close()


def ints(*values: int) -> Column:
    return column(*values)


def bag(*values: int, weights: list[float] | None = None) -> Column:
    return column(*values, offsets=[0, len(values)], weights=weights)


def lists(*ids: int) -> IdLists:
    return IdLists(np.array(ids, np.int64))


def retrieval(user: int, *history: int, **options: Any) -> RetrievalRequest:
    return RetrievalRequest(
        TARGET, context={"user": ints(user), "history": bag(*history)}, **options
    )


def ranking(user: int, *ids: int, **options: Any) -> RankingRequest:
    features = {"year": column(*[float(number) for number in ids])}
    context = {"user": ints(user), **options.pop("context", {})}
    options = {"candidate_ids": np.array(ids, np.int64), **options}
    return RankingRequest(TARGET, context, candidate_features=features, **options)


def of_years(*years: int) -> Filter:
    return Filter({"year": Condition(allow=np.array(years, np.int64), ge=1990)})


def embedding(*users: int, tower: str = "query") -> EmbeddingRequest:
    return EmbeddingRequest(TARGET, tower, {"user": ints(*users)})


def looked_up(*ids: int, **options: Any) -> LookupRequest:
    return LookupRequest(TARGET, "user", ints(*ids), **options)


ALIKE = [
    (retrieval(1, 2, 3), retrieval(4)),
    (
        retrieval(1),
        RetrievalRequest(
            TARGET, context={"user": ints(1, 2), "history": column(3, offsets=[0, 0, 1])}
        ),
    ),
    (retrieval(1, filter=of_years(1999)), retrieval(2, filter=of_years(1999))),
    (retrieval(1, exclude_ids=lists(1, 2)), retrieval(2, exclude_ids=lists(7))),
    (retrieval(1, negative_ids=lists(1)), retrieval(2, negative_ids=lists(2, 3))),
    (
        RetrievalRequest(TARGET, vectors=VECTORS),
        RetrievalRequest(TARGET, vectors=np.ones(24, np.float32)),
    ),
    (
        RetrievalRequest(TARGET, ids=np.array([1, 2, 3]), query_offsets=np.array([0, 2, 3])),
        RetrievalRequest(TARGET, ids=np.array([1]), query_offsets=np.array([0, 1])),
    ),
    # It says nothing of a retrieval without ids.
    (retrieval(1), retrieval(1, not_found=NotFoundRule.SKIP)),
    (ranking(1, 2, 3), replace(ranking(4, *range(500)), offsets=np.array([0, 500]))),
    (
        ranking(1, 2, context={"liked": bag(5, weights=[1.0])}),
        ranking(1, 2, context={"liked": bag(5, 6, weights=[1.0, 0.5])}),
    ),
    (ranking(1, 2, context_ids=np.array([1])), ranking(1, 2, context_ids=np.array([2]))),
    (embedding(1), embedding(1, 2, 3)),
    (looked_up(1, 2), looked_up(5)),
]
UNLIKE = [
    (retrieval(1), unlike)
    for unlike in [
        retrieval(1, k=3),
        retrieval(1, index="second"),
        retrieval(1, attributes=("title",)),
        retrieval(1, min_score=0.5),
        retrieval(1, offset=0, pool_size=20),
        retrieval(1, explain=True),
        retrieval(1, exact=True),
        retrieval(1, crowding={"studio": 1}),
        retrieval(1, filter=of_years(1999)),
        retrieval(1, exclude_ids=lists(1)),
        retrieval(1, context_ids=np.array([1])),
        RetrievalRequest(TARGET, context={"history": bag()}),
        RetrievalRequest(TARGET, context={"user": column(1.0), "history": bag()}),
        RetrievalRequest(TARGET, vectors=VECTORS),
        ranking(1, 2),
    ]
] + [
    (retrieval(1, filter=of_years(1999)), retrieval(1, filter=of_years(1999, 2000))),
    (
        retrieval(1, filter=Filter({"year": Condition(ge=1990)})),
        retrieval(1, filter=Filter({"year": Condition(le=1990)})),
    ),
    (
        retrieval(1, filter=Filter(any=(of_years(1999),))),
        retrieval(1, filter=Filter(none=(of_years(1999),))),
    ),
    (
        retrieval(1, filter=Filter(near=(Circle(1.0, 2.0, 5.0),))),
        retrieval(1, filter=Filter(near=(Circle(1.0, 2.0, 6.0),))),
    ),
    (retrieval(1, exclude_ids=lists(1)), retrieval(1, exclude_ids=IdLists(np.array(["1"], "O")))),
    (ranking(1, 2), ranking(1, 2, not_found=NotFoundRule.SKIP)),
    (
        ranking(1, 2, context={"liked": bag(5)}),
        ranking(1, 2, context={"liked": bag(5, weights=[1.0])}),
    ),
    (embedding(1), embedding(1, tower="candidate")),
    (looked_up(1), looked_up(1, not_found=NotFoundRule.SKIP)),
]
ALONE = [
    retrieval(1, filter=of_years(*range(FILTER_SIZE_MAX + 1))),
    RetrievalRequest(TARGET, vectors=VECTORS, exclude_ids=lists(1, 2)),
    RetrievalRequest(TARGET, vectors=np.ones(9, np.float32)),
    RetrievalRequest(TARGET, vectors=VECTORS, index="unknown"),
    RetrievalRequest(TARGET, context={"no such feature": ints(1)}),
    RetrievalRequest(TARGET),
    ranking(1),
    ranking(1, 2, context={"liked": bag(5, 6, weights=[1.0])}),
    ranking(1, 2, context_ids=np.array([1, 2])),
    replace(ranking(1, 2, 3), offsets=np.array([0, 1])),
    replace(ranking(1, 2, 3), candidate_ids=np.array([1, 2, 3])),
    EmbeddingRequest(TARGET, "query"),
]


@pytest.mark.parametrize(("first", "second"), ALIKE)
def test_key_of_requests_of_other_examples_is_equal(
    first: Any, second: Any, version: ModelVersion
) -> None:
    key = batch_key(first, version)
    assert key is not None
    assert key == batch_key(second, version)
    assert hash(key) == hash(batch_key(second, version))
    counts = np.diff(merge([first, second, first], version).ends).tolist()
    assert counts[0] == counts[2]
    assert min(counts) > 0


@pytest.mark.parametrize(("first", "second"), UNLIKE)
def test_key_of_requests_of_another_form_differs(
    first: Any, second: Any, version: ModelVersion
) -> None:
    keys = batch_key(first, version), batch_key(second, version)
    assert None not in keys
    assert keys[0] != keys[1]


@pytest.mark.parametrize("request_", ALONE)
def test_requests_whose_faults_others_could_hide_or_that_are_not_divided_have_no_key(
    request_: Any, version: ModelVersion
) -> None:
    assert batch_key(request_, version) is None
