from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bundle.errors import FeatureError
from bundle.features.rules.casts import CastFirst
from bundle.features.rules.ids import Arithmetic, Identity
from bundle.format.manifest import Cast

NUMBERS = np.array([0.0, 0.5, 1.5, 2.5, 2.9, -0.5, -1.0, 7.0, 3e9, -1e30, 2.0**31], np.float32)


@pytest.mark.parametrize(
    ("rounding", "rows"),
    [
        ("toward_zero", [0, 0, 1, 2, 2, 0, -1, 7, -1, -1, -1]),
        ("down", [0, 0, 1, 2, 2, -1, -1, 7, -1, -1, -1]),
        ("up", [0, 1, 2, 3, 3, 0, -1, 7, -1, -1, -1]),
        ("half_even", [0, 0, 2, 2, 3, 0, -1, 7, -1, -1, -1]),
    ],
)
def test_cast_rounds_numbers_to_rows(rounding: Any, rows: list[int]) -> None:
    cast = CastFirst("f", Cast(of="float32", to="int32", rounding=rounding), Identity("f", 9))
    assert cast.resolve(NUMBERS).tolist() == rows


@pytest.mark.parametrize(("to", "smallest"), [("int32", -(1 << 31)), ("int64", -(1 << 63))])
def test_cast_of_numbers_beyond_integers_is_the_smallest_one(to: Any, smallest: int) -> None:
    cast = CastFirst("f", Cast(of="float32", to=to), Arithmetic("f", 100, buckets=97))
    beyond = np.array([1e30, -1e30, float(-smallest)], np.float32)
    assert cast.resolve(beyond).tolist() == [smallest % 97] * 3
    largest = np.nextafter(np.float32(-smallest), np.float32(0))
    assert cast.resolve(np.array([largest])).tolist() == [int(largest) % 97]


def test_cast_takes_integers_as_the_numbers_that_they_are_sent_as() -> None:
    cast = CastFirst("f", Cast(of="float32", to="int64"), Identity("f", 1 << 30))
    assert cast.resolve(np.array([3, (1 << 24) + 1])).tolist() == [3, 1 << 24]


def test_cast_of_integers_wraps_around() -> None:
    cast = CastFirst("f", Cast(of="int64", to="int32"), Identity("f", 1 << 40))
    assert cast.resolve(np.array([5, (1 << 32) + 5, 1 << 31, -1])).tolist() == [5, 5, -1, -1]


@pytest.mark.parametrize("values", [np.array(["a"], object), np.array([np.nan], np.float32)])
def test_cast_refuses_what_is_no_number(values: Any) -> None:
    with pytest.raises(FeatureError, match="f"):
        CastFirst("f", Cast(of="float32", to="int32"), Identity("f", 9)).resolve(values)
