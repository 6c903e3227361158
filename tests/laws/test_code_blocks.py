"""Codes of vectors that grow in number: the same in whatever parts the vectors come, and as near to
exact scores for vectors that differ from those before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bundle.format.manifest import Distance
from runtime.code_blocks import UNIT, BlockedCodes
from runtime.exact import ExactIndex, normalized

Vectors = NDArray[np.float32]
DISTANCES: tuple[Distance, ...] = get_args(Distance)
SIZE = 7 * UNIT + 300
KINDS = (
    "equal",
    "zeros",
    "moved",
    "longer",
    "shorter",
    "of mixed lengths",
    "of few values",
    "huge",
)
K = 10


def random_vectors(size: int, dim: int, seed: int = 0) -> Vectors:
    return np.random.default_rng(seed).normal(size=(size, dim)).astype(np.float32)


def vectors_of(kind: str, dim: int, seed: int = 0) -> Vectors:
    """Returns vectors of which the later ones differ from the first."""
    random = np.random.default_rng(seed)
    vectors = random_vectors(SIZE, dim, seed).astype(np.float64)
    later = vectors[3 * UNIT - 100 :]
    if kind == "equal":
        later[:] = later[0]
    elif kind == "zeros":
        later[:] = 0
    elif kind == "moved":
        later += 4
    elif kind == "longer":
        later *= 3
    elif kind == "shorter":
        later /= 10
    elif kind == "of mixed lengths":
        later *= np.exp(random.normal(scale=0.5, size=(len(later), 1)))
    elif kind == "of few values":
        later[:] = later.round()
    else:
        later[::500] = 1e30
        later[7::500] = np.inf
        later[9::500] = np.nan
    return vectors.astype(np.float32)


def queries_of(count: int, dim: int, distance: Distance) -> Vectors:
    queries = np.random.default_rng(9).normal(size=(count, dim)).astype(np.float32)
    return normalized(queries) if distance == "cosine" else queries


def as_lists(nearest: Sequence[NDArray[np.int64]]) -> list[list[int]]:
    return [positions.tolist() for positions in nearest]


@settings(max_examples=30, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    dim=st.sampled_from([1, 5, 8]),
    distance=st.sampled_from(DISTANCES),
    ends=st.lists(st.integers(0, SIZE), max_size=8).map(sorted),
    picked=st.sets(st.integers(0, SIZE - 1), max_size=400),
)
def test_codes_of_vectors_that_come_in_any_parts_are_those_of_all_at_once(
    kind: str, dim: int, distance: Distance, ends: list[int], picked: set[int]
) -> None:
    vectors = vectors_of(kind, dim)
    whole = BlockedCodes(vectors, distance)
    grown: BlockedCodes | None = None
    for end in [*ends, SIZE]:
        grown = BlockedCodes(vectors[:end], distance, grown)
    assert grown is not None
    positions = np.array(sorted(picked), np.uint32)
    queries = queries_of(4, dim, distance)
    expected = as_lists(whole.packed.nearest(queries, 200))
    assert all(len({*nearest}) == len(nearest) <= 200 for nearest in expected)
    assert as_lists(grown.packed.nearest(queries, 200)) == expected
    assert as_lists(whole.pack(np.arange(SIZE)).nearest(queries, 200)) == expected
    alone = [whole.packed.nearest(query[np.newaxis], 200)[0] for query in queries]
    assert as_lists(alone) == expected
    nearest_picked = as_lists(whole.pack(positions).nearest(queries, 50))
    assert as_lists(grown.pack(positions).nearest(queries, 50)) == nearest_picked


@pytest.mark.parametrize("first", [0, UNIT // 2 + 1, 3 * UNIT])
@pytest.mark.parametrize("spare_count", [0, 500])
def test_codes_do_not_depend_on_vectors_that_are_no_sample(first: int, spare_count: int) -> None:
    vectors = vectors_of("moved", 8)
    is_sample = np.random.default_rng(1).random(SIZE) < 0.7
    is_sample[:first] = False
    elsewhere = np.where(is_sample[:, np.newaxis], vectors, 50 * vectors[::-1])
    positions = is_sample.nonzero()[0]
    queries = queries_of(10, 8, "dot_product")
    nearest = [
        BlockedCodes(
            state, "dot_product", None, is_sample, lambda: random_vectors(spare_count, 8)
        ).pack(positions)
        for state in (vectors, elsewhere)
    ]
    lists = [as_lists(packed.nearest(queries, 100)) for packed in nearest]
    assert lists[0] == lists[1]
    assert nearest[0].bytes < positions.size * 8 * 4, "nothing was encoded"


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("equal", "zeros", "huge")])
def test_nearest_by_codes_hold_those_by_exact_scores(kind: str, distance: Distance) -> None:
    vectors = vectors_of(kind, 24)
    queries = queries_of(30, 24, distance)
    exact, _ = ExactIndex(vectors, distance).search(queries, K)
    nearest = as_lists(BlockedCodes(vectors, distance).packed.nearest(queries, 300))
    pairs = zip(nearest, exact.tolist(), strict=True)
    hits = sum(len({*by_codes} & {*true}) for by_codes, true in pairs)
    assert hits / exact.size >= 0.98
