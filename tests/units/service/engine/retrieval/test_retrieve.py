"""Neighbors by features, vectors and ids, against the reference model in float64."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from service.engine.calls import IdLists, RetrievalRequest, RetrievalResult, Target
from service.engine.execution import Execution
from service.engine.retrieval import retrieve
from service.errors import InvalidArgument, TooLarge
from tests.units.service import reference
from tests.units.service.engine.served import Served, column

Load = Callable[..., Served]
ONES = np.ones(8, np.float32)


def check(result: RetrievalResult, query: int, expected: list[tuple[Any, float]]) -> None:
    first, last = result.offsets[query : query + 2]
    assert result.ids[first:last].tolist() == [movie for movie, _ in expected]
    np.testing.assert_allclose(
        result.scores[first:last], [score for _, score in expected], 1e-5, 1e-5
    )


def test_retrieve_from_a_tree_that_searches_few_leaves_still_returns_k(load: Load) -> None:
    tree = {"num_leaves": 20, "leaves_to_search": 1, "dimensions_per_block": 2, "reorder": 10}
    service = load(size=400, index_kind="tree_ah", parameters=tree)
    vectors = np.random.default_rng(6).normal(size=(4, 8)).astype(np.float32)
    index = service.version.indexes["movies"].here
    assert index is not None
    assert index.approximate is not None
    fetched, _ = index.approximate.search(vectors, 200)
    assert (fetched < 0).any(), "the tree alone finds too few, else this test shows nothing"

    excluded = service.small.ids[::2]
    result = service.retrieve(vectors=vectors, k=150, exclude_ids=IdLists(excluded))
    assert np.diff(result.offsets).tolist() == [150] * 4
    assert not set(result.ids.tolist()) & set(excluded.tolist())


def test_retrieve_many_queries_with_one_long_exclusion_searches_in_bounded_blocks(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = load()
    small = service.small
    monkeypatch.setattr("service.engine.retrieval.search.CELLS_MAX", 60)
    vectors = np.random.default_rng(8).normal(size=(9, 8)).astype(np.float32)
    exclude = IdLists(small.ids[:30], np.array([0, 0, 0, 0, 0, 30, 30, 30, 30, 30]))
    result = service.retrieve(vectors=vectors, k=5, exclude_ids=exclude, exact=True)
    for query in range(9):
        excluded = list(small.ids[:30]) if query == 4 else []
        check(
            result,
            query,
            reference.neighbors(small, vectors[query].astype(np.float64), 5, excluded),
        )


def test_queries_with_exclusions_of_their_own_share_one_deny_list(load: Load) -> None:
    service = load()
    index = service.version.indexes["movies"]
    denied = np.arange(100, 1_000_100, dtype=np.uint32)  # of a larger corpus than the test has
    index.corpus.denied.positions = denied
    excluded = service.small.ids[:32]
    request = RetrievalRequest(Target(), exclude_ids=IdLists(excluded, np.arange(33)))

    tracemalloc.start()
    allowed = retrieve.allowed_candidates(index, request, 32, Execution("retrieve"))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < denied.nbytes / 10
    assert allowed.denied is denied
    assert [excluded.tolist() for excluded in allowed.excluded] == [
        [position] for position in range(32)
    ]


@pytest.mark.parametrize(
    ("request_", "kind", "message"),
    [
        (
            {},
            InvalidArgument,
            "the request has no query; exactly one of context .or context ids., vectors",
        ),
        (
            {"vectors": np.array([1.0] * 9 + [np.nan] + [1.0] * 6)},
            InvalidArgument,
            "vectors holds NaN or an infinity in vector 1",
        ),
        (
            {"vectors": np.ones(8 * 9)},
            TooLarge,
            r"the request has 9 queries; at most 8 .*max_queries",
        ),
        (
            {"vectors": ONES, "attributes": ("titel",)},
            InvalidArgument,
            "'titel'; .* did you mean 'title'",
        ),
        ({"context": {"usr": column(1)}}, InvalidArgument, "'usr'; .* did you mean 'user'"),
        (
            {"vectors": ONES, "exclude_ids": IdLists(np.array([1000]), np.array([0, 1, 1]))},
            InvalidArgument,
            "exclude_offsets has 3 values for 1; one more than",
        ),
    ],
)
def test_retrieve_invalid_request_is_rejected_with_what_is_wrong(
    load: Load, request_: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        load({"max_queries": 8, "max_values": 50}).retrieve(**request_)
