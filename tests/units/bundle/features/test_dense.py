from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bundle.errors import FeatureError
from bundle.features.columns import Column
from bundle.features.dense import Dense
from bundle.format.manifest import DenseFeature

IDS = np.array([5, 6, 7, 8])
OFFSETS = np.array([0, 2, 2, 4])


def feature(take: str, dtype: str = "int64", **more: Any) -> Dense:
    fields = {"kind": "dense", "role": "context", "take": take, "shape": [3], "dtype": dtype} | more
    return Dense("bag", DenseFeature.model_validate(fields), drop_weights=True)


def test_dense_strings_are_padded_with_empty_strings_and_numbers_are_rejected() -> None:
    padded = feature("padded", "string")
    texts = np.array(["a", "b", "", "ö"], object)
    assert padded.activation({"bag": Column(texts, OFFSETS)}, 3).values.tolist() == [
        ["a", "b", ""],
        ["", "", ""],
        ["", "ö", ""],
    ]
    with pytest.raises(FeatureError, match="5 is an integer"):
        padded.activation({"bag": Column(IDS, OFFSETS)}, 3)


@pytest.mark.parametrize(
    ("take", "column", "n", "expected"),
    [
        ("padded", Column(IDS, OFFSETS), 3, [[5, 6, 0], [0, 0, 0], [7, 8, 0]]),
        ("padded", Column(IDS), 2, [[5, 6, 0], [7, 8, 0]]),
        (
            "weights",
            Column(IDS, OFFSETS, np.array([0.5, 0, 2, -1], np.float32)),
            3,
            [[0.5, 0, 0], [0] * 3, [2, -1, 0]],
        ),
        ("weights", Column(IDS, OFFSETS), 3, [[1, 1, 0], [0, 0, 0], [1, 1, 0]]),
    ],
)
def test_dense_bags_and_their_weights_are_padded_with_zeros(
    take: str, column: Column, n: int, expected: Any
) -> None:
    dtype = {"padded": "int64", "weights": "float32"}[take]
    actual = feature(take, dtype).activation({"bag": column}, n).values
    assert actual.dtype == np.dtype(dtype)
    assert actual.tolist() == expected


def test_dense_bag_that_is_too_long_is_rejected_with_its_example() -> None:
    with pytest.raises(FeatureError, match="4 values in example 1; a list of at most 3"):
        feature("padded").activation({"bag": Column(IDS, np.array([0, 0, 4]))}, 2)


def test_dense_bag_with_another_number_of_weights_is_rejected() -> None:
    with pytest.raises(FeatureError, match="2 weights for 4 values"):
        feature("weights", "float32").activation(
            {"bag": Column(IDS, OFFSETS, np.ones(2, np.float32))}, 3
        )


def test_dense_default_of_a_bag_is_padded_with_its_weights() -> None:
    default = {"ids": [4, 9], "weights": [2, 0.5]}
    assert feature("padded", default=default).activation({}, 2).values.tolist() == [[4, 9, 0]] * 2
    assert feature("weights", "float32", default=default).activation({}, 1).values.tolist() == [
        [2, 0.5, 0]
    ]
    assert feature("padded", default=[]).activation({}, 1).values.tolist() == [[0, 0, 0]]
