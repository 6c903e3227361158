"""What requests cost, and which of them take about equally long."""

from __future__ import annotations

import numpy as np

from service.engine.calls import (
    Condition,
    Filter,
    IdLists,
    RecommendationRequest,
    RetrievalRequest,
    Target,
)
from service.versions.version import Sizes
from tests.units.service.running import column

SIZES = Sizes(candidates=5_000, dim=4)


def retrieval(**options: object) -> RetrievalRequest:
    return RetrievalRequest(target=Target("m"), context={"user": column(7)}, **options)  # type: ignore[arg-type]


def test_kind_and_cost_of_a_retrieval_see_its_filter_exclusions_and_recall() -> None:
    plain = retrieval()
    many = np.arange(100_000)
    filtered = retrieval(filter=Filter({"genre": Condition(allow=many)}))
    shorter = retrieval(filter=Filter({"genre": Condition(allow=many[:1])}))
    excluding = retrieval(exclude_ids=IdLists(many, np.array([0, many.size])))
    kinds = {
        request.kind for request in (plain, filtered, shorter, excluding, retrieval(recall=0.9))
    }
    assert len(kinds) == 5
    assert retrieval(recall=0.5).kind != retrieval(recall=1.0).kind
    assert plain.cost(SIZES) == shorter.cost(SIZES) == 1
    assert filtered.cost(SIZES) > 300
    assert excluding.cost(SIZES) > 300


def test_cost_of_flat_vectors_is_their_number() -> None:
    flat = RetrievalRequest(Target("m"), vectors=np.zeros(400, np.float32))
    rows = RetrievalRequest(Target("m"), vectors=np.zeros((100, 4), np.float32))
    assert flat.cost(SIZES) == rows.cost(SIZES) == 100


def test_cost_of_a_recommendation_is_bounded_by_the_corpus() -> None:
    for pool_size, k in ((2**62, 0), (0, 2**62), (5_000, 0)):
        request = RecommendationRequest(
            target=Target("m"), context={"user": column(7)}, pool_size=pool_size, k=k
        )
        assert request.cost(SIZES) == 5_000


def test_kind_does_not_keep_long_names() -> None:
    kinds = {retrieval(index=letter * 10_000).kind for letter in "abc"}
    assert kinds == {retrieval(index="d" * 200).kind}
    assert retrieval(index="a").kind != retrieval(index="b").kind
