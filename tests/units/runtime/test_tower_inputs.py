from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.format.towers import TowerInput
from runtime.tower_inputs import tower_inputs


def test_tower_inputs_packed_features_lie_side_by_side_in_their_order() -> None:
    values = {
        "user": np.arange(6, dtype=np.float32).reshape(2, 3),
        "age": np.array([7, 8], np.float32),
        "place": np.array([[1.0, 2.0], [3.0, 4.0]]),
    }
    packed = TowerInput(
        name="packed", features=("age", "user", "place"), dtype="float32", shape=(None, 6)
    )
    laid = tower_inputs([packed], values, 2)["packed"]
    assert laid.dtype == np.float32
    assert laid.tolist() == [[7, 0, 1, 2, 1, 2], [8, 3, 4, 5, 3, 4]]


def test_tower_inputs_single_feature_and_tensor_are_taken_as_they_are() -> None:
    values = {"user": np.ones((2, 3), np.float32), "context_0": np.zeros((2, 4), np.float32)}
    inputs = [
        TowerInput(name="a", feature="user", dtype="float32", shape=(None, 3)),
        TowerInput(name="b", tensor="context_0", dtype="float32", shape=(None, 4)),
    ]
    laid = tower_inputs(inputs, values, 2)
    assert np.shares_memory(laid["a"], values["user"])
    assert np.shares_memory(laid["b"], values["context_0"])


def test_tower_inputs_no_examples_keep_their_shapes() -> None:
    values: dict[str, NDArray[Any]] = {
        "user": np.empty((0, 3), np.float32),
        "age": np.empty(0, np.int64),
    }
    packed = TowerInput(name="packed", features=("user", "age"), dtype="float32", shape=(None, 4))
    alone = TowerInput(name="age", feature="age", dtype="int32", shape=(None,))
    laid = tower_inputs([packed, alone], values, 0)
    assert laid["packed"].shape == (0, 4)
    assert laid["age"].shape == (0,)
    assert laid["age"].dtype == np.int32
