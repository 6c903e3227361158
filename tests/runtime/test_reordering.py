"""The best candidates by their exact scores: as compiled code and numpy tell them, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from numpy.typing import NDArray

from bundle import native
from bundle.manifest import Distance
from runtime.exact import ExactIndex
from runtime.reordering import in_numpy, nearest

needs_compiled = pytest.mark.skipif(native.nearest is None, reason=f"not compiled: {native.MISSING}")
VECTORS = np.random.default_rng(0).normal(size=(50, 19)).astype(np.float32)


@pytest.mark.parametrize("distance", ["dot_product", "cosine", "squared_l2"])
def test_nearest_of_all_are_those_of_exact_search(distance: Distance) -> None:
    query = VECTORS[3] / np.float32(np.linalg.norm(VECTORS[3]))

    positions, scores = nearest(VECTORS, query, np.arange(50, dtype=np.uint32)[::-1].copy(), 7, distance)

    right, wanted = ExactIndex(VECTORS, distance).search(query[np.newaxis], 7)
    np.testing.assert_array_equal(positions, right[0])
    np.testing.assert_allclose(scores, wanted[0], rtol=1e-5, atol=1e-6)
    assert (positions.dtype.name, scores.dtype.name) == ("int64", "float32")


def test_nearest_of_fewer_than_k_are_all_and_of_equals_the_first_comes_first() -> None:
    vectors = np.ones((6, 4), np.float32)

    positions, scores = nearest(vectors, vectors[0], np.array([5, 2, 4], np.uint32), 9, "dot_product")

    assert (positions.tolist(), scores.tolist()) == ([2, 4, 5], [4, 4, 4])


@needs_compiled
@given(
    seed=some.integers(0, 2**32 - 1),
    shape=some.tuples(some.integers(1, 300), some.integers(1, 70)),
    share=some.floats(0, 1),
    k=some.integers(0, 310),
    scale=some.sampled_from([0.0, 1e-30, 1.0, 1e19, 3e38]),
    rounded=some.booleans(),
    distance=some.sampled_from(["dot_product", "cosine", "squared_l2"]),
)
def test_nearest_compiled_gives_the_bits_of_numpy(
    seed: int, shape: tuple[int, int], share: float, k: int, scale: float, rounded: bool, distance: Distance
) -> None:
    random = np.random.default_rng(seed)
    drawn = np.clip(random.normal(size=(shape[0] + 1, shape[1])), -1, 1)
    values: NDArray[np.float32] = (np.round(drawn) if rounded else drawn).astype(np.float32)
    vectors, query = values[1:].copy(), values[0].copy()
    vectors[random.integers(0, shape[0])] *= np.float32(scale)
    positions = random.permutation(shape[0])[: int(share * shape[0])].astype(np.uint32)

    ours, theirs = nearest(vectors, query, positions, k, distance), in_numpy(vectors, query, positions, k, distance)

    assert [array.tobytes() for array in ours] == [array.tobytes() for array in theirs]


@needs_compiled
@pytest.mark.parametrize(
    "wrong",
    [
        {"positions": np.array([50], np.uint32)},
        {"positions": np.array([1], np.int64)},
        {"query": VECTORS[0, :5].copy()},
        {"query": VECTORS[0].astype(np.float64)},
        {"vectors": VECTORS[:, ::2]},
        {"k": -1},
        {"distance": "manhattan"},
    ],
)
def test_nearest_compiled_refuses_what_it_would_read_wrongly(wrong: dict[str, Any]) -> None:
    sound = {"vectors": VECTORS, "query": VECTORS[0], "positions": np.zeros(1, np.uint32), "k": 1, "distance": "cosine"}

    assert native.nearest is not None
    with pytest.raises(ValueError, match=r"position has no vector|must be float32"):
        native.nearest(*(sound | wrong).values())
