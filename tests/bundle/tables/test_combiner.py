from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bundle.tables.combiner import combine

VECTORS = np.array([[1, 10], [2, 20], [4, 40], [8, 80]], np.float32)
OFFSETS = np.array([0, 0, 3, 4, 4])
ROOT = np.sqrt(np.float32(3))


@pytest.mark.parametrize(
    ("combiner", "first", "second"),
    [("sum", [0, 0], [-16, -160]), ("mean", [0, 0], [8, 80]), ("sqrtn", [0, 0], [-8, -80])],
)
def test_combine_with_weights_that_cancel_divides_nothing_by_zero(combiner: Any, first: Any, second: Any) -> None:
    weights = np.array([2, -1, 0, -2], np.float32)
    found = combine(VECTORS.copy(), OFFSETS, combiner, weights)
    np.testing.assert_allclose(found, [[0, 0], first, second, [0, 0]], rtol=1e-6)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_combine_of_no_bags_and_of_empty_bags(combiner: Any) -> None:
    none = np.empty((0, 3), np.float32)
    assert combine(none, np.array([0]), combiner).shape == (0, 3)
    assert (combine(none, np.array([0, 0, 0]), combiner) == np.zeros((2, 3))).all()


@pytest.mark.parametrize("dim", [1, 2, 16])
def test_combine_of_a_long_bag_adds_front_to_back(dim: int) -> None:
    # 1 drowns in 2^24 when it comes behind it, and counts when it comes first: only the order tells them apart.
    vectors = np.ones((1001, dim), np.float32)
    vectors[0] = 2.0**24
    assert (combine(vectors.copy(), np.array([0, 1001]), "sum") == 2.0**24).all()
    assert (combine(vectors[::-1].copy(), np.array([0, 1001]), "sum") == 2.0**24 + 1000).all()


@pytest.mark.parametrize("lengths", [[1], [2], [1, 1], [2, 2], [1, 2], [3, 0]])
def test_combine_of_negative_zeros_keeps_their_sign_whatever_the_company(lengths: list[int]) -> None:
    offsets = np.cumsum([0, *lengths])
    found = combine(np.full((sum(lengths), 4), -0.0, np.float32), offsets, "sum")
    assert (np.signbit(found).all(axis=1) == (np.array(lengths) > 0)).all()
