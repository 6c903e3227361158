from __future__ import annotations

import numpy as np

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
