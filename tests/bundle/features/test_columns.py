from __future__ import annotations

import numpy as np
import pytest

from bundle.errors import FeatureError
from bundle.features.columns import Column, repeated


def test_repeated_column_has_each_example_as_often_as_told() -> None:
    weights = np.array([1, 2, 3], np.float32)
    column = Column(np.array(["a", "b", "c"], object), np.array([0, 2, 2, 3]), weights)
    found = repeated("f", column, np.array([2, 1, 3]))
    assert found.values.tolist() == ["a", "b", "a", "b", "c", "c", "c"]
    assert found.offsets is not None
    assert found.offsets.tolist() == [0, 2, 4, 4, 5, 6, 7]
    assert found.weights is not None
    assert found.weights.tolist() == [1, 2, 1, 2, 3, 3, 3]


@pytest.mark.parametrize(("counts", "values"), [([3, 0, 1], [7, 7, 7, 9]), ([0, 0, 0], [])])
def test_repeated_column_without_offsets_is_of_one_value_each(counts: list[int], values: list[int]) -> None:
    found = repeated("f", Column(np.array([7, 8, 9])), np.array(counts))
    assert found.values.tolist() == values
    assert found.weights is None
    with pytest.raises(FeatureError, match="'f': 3 values for 2 examples"):
        repeated("f", Column(np.array([7, 8, 9])), np.array([1, 1]))
