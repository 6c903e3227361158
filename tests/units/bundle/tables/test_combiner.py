from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.tables.combiner import Combiner, combine, combine_clipped

LARGEST = np.finfo(np.float32).max
ROWS = np.array([[1, -1], [2, 0], [LARGEST, LARGEST]], np.float32)
INF = np.inf
NAN = np.nan


def take(rows: NDArray[np.int64]) -> NDArray[np.float32]:
    return ROWS[rows]


@pytest.mark.parametrize(
    ("combiner", "weights", "expected"),
    [
        ("sum", [LARGEST, LARGEST], [INF, -LARGEST]),
        ("mean", [LARGEST, LARGEST], [NAN, 0]),
        ("sqrtn", [LARGEST, LARGEST], [NAN, 0]),
        ("sqrtn", [1e30, 1e30], [0, 0]),
        ("mean", [LARGEST, -LARGEST], [0, 0]),
    ],
)
def test_combine_weights_that_overflow_float32_gives_infinities_without_a_warning(
    combiner: Combiner, weights: Any, expected: Any
) -> None:
    offsets = np.array([0, 2])
    combined = combine(take(np.array([0, 1])), offsets, combiner, np.array(weights, np.float32))
    np.testing.assert_array_equal(combined, np.array([expected], np.float32))


@pytest.mark.parametrize("bags", [[0, 2], [0, 2, 4]])
def test_combine_rows_whose_sum_overflows_gives_an_infinity_without_a_warning(bags: Any) -> None:
    rows = np.array([2, 2, 2, 2])[: bags[-1]]
    combined = combine(take(rows), np.array(bags), "sum")
    assert np.isposinf(combined).all()


def test_combine_clipped_row_whose_norm_overflows_gives_zeros_without_a_warning() -> None:
    combined = combine_clipped(take, 0.5, np.array([2, 0]), np.array([0, 1, 2]), "sum")
    assert combined[0].tolist() == [0, 0]
    assert np.linalg.norm(combined[1]) == pytest.approx(0.5)
