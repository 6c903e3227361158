"""JSON values to packed columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.codec.columns import SHOWN_MAX, column, columns_of_one, fields, flat, numbers, offsets_of, shown
from service.errors import InvalidArgument

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("values", "dtype", "packed"),
    [
        ([0, -1, 2**53 + 1, 2**63 - 1, -(2**63)], np.int64, [0, -1, 2**53 + 1, 2**63 - 1, -(2**63)]),
        (["a", "007", ""], object, ["a", "007", ""]),
        ([5, "9007199254740993", "-3"], np.int64, [5, 9007199254740993, -3]),
        ([1, 2.5], np.float32, [1.0, 2.5]),
        ([], np.int64, []),
    ],
)
def test_flat_of_one_kind_packs_values(values: list[Any], dtype: Any, packed: list[Any]) -> None:
    found = flat(values, "ids")
    assert found.dtype == dtype
    assert found.tolist() == packed


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([True], "holds true"),
        ([1, None], "holds null"),
        ([[1]], "[1]"),
        ([{"a": 1}], "'a'"),
        ([2**63], "does not fit int64"),
        ([-(2**63) - 1], "does not fit int64"),
        ([1, "x"], "'x'"),
        ([1, "٣"], "mixes"),
        ([1, "9223372036854775808"], "does not fit int64"),
        ([1, "12345678901234567890"], "mixes"),
        ([1.5, "a"], "mixes numbers and strings"),
        ([1, 1.5, "2"], "mixes numbers and strings"),
        ([1e39], "beyond float32"),
        ([-1.5e300, 1.0], "-1.5e+300"),
    ],
)
def test_flat_of_what_is_no_column_is_refused_and_shown(values: list[Any], expected: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        flat(values, "features.age")
    assert "features.age" in str(refused.value)
    assert expected in str(refused.value)


def test_numbers_with_a_string_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="'1'"):
        numbers([1.0, "1"], "vector")


@given(st.lists(st.integers(0, 100)))
def test_offsets_differ_by_the_lengths(lengths: list[int]) -> None:
    offsets = offsets_of(lengths)
    assert offsets.dtype == np.int64
    assert offsets[0] == 0
    assert np.diff(offsets).tolist() == lengths


def _lists(packed: Any) -> list[Any]:
    return [None if part is None else part.tolist() for part in packed]


@pytest.mark.parametrize(
    ("examples", "packed"),
    [
        ([3, 4], [[3, 4], None, None]),
        ([[1, 2], [], [3]], [[1, 2, 3], [0, 2, 2, 3], None]),
        ([7, [1, 2]], [[7, 1, 2], [0, 1, 3], None]),
        ([[[1, 2], [3, 4], [5, 6.5]]], [[1, 2, 3, 4, 5, 6.5], [0, 6], None]),
        ([{"ids": [1, 2], "weights": [0.5, 2]}, [3], {"ids": [4]}], [[1, 2, 3, 4], [0, 2, 3, 4], [0.5, 2.0, 1.0, 1.0]]),
    ],
)
def test_column_of_scalars_bags_weights_and_nested_lists_packs_them(examples: list[Any], packed: list[Any]) -> None:
    assert _lists(column(examples, "history")) == packed


@pytest.mark.parametrize(
    ("examples", "expected"),
    [
        ([[[1, 2], [3]]], "several lengths"),
        ([[1, [2]]], "several lengths"),
        ([[[[[[[[[[1]]]]]]]]]], "deeper"),
        ([{"weights": [1]}], "no 'ids'"),
        ([{"ids": [1, 2], "weights": [1]}], "2 ids and 1 weights"),
        ([{"ids": [1], "weights": ["1"]}], "bag.weights holds '1'"),
        ([{"ids": [1], "weight": [1]}], "did you mean 'weights'"),
        ([{"ids": 1}], "a list was expected"),
        ([{"ids": [[1]], "weights": [1]}], "[1]"),
        ([None], "holds null"),
    ],
)
def test_column_of_another_shape_is_refused(examples: list[Any], expected: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        column(examples, "bag")
    assert expected in str(refused.value)


@given(st.lists(json_values, min_size=1, max_size=4))
def test_column_of_anything_is_a_valid_column_or_refused(examples: list[Any]) -> None:
    try:
        packed = column(examples, "any")
    except InvalidArgument:
        return
    assert packed.values.ndim == 1
    assert packed.values.dtype in (np.dtype(np.int64), np.dtype(np.float32), np.dtype(object))
    if packed.offsets is None:
        assert len(packed.values) == len(examples)
    else:
        assert len(packed.offsets) == len(examples) + 1
        assert packed.offsets[-1] == len(packed.values)
    if packed.values.dtype == np.float32:
        assert np.isfinite(packed.values).all()


def test_fields_with_an_unknown_one_names_the_nearest() -> None:
    with pytest.raises(InvalidArgument, match="unknown field 'featurs'; did you mean 'features'"):
        fields({"featurs": {}}, ("k", "features"), "the body")


def test_fields_unlike_any_lists_the_known_ones() -> None:
    with pytest.raises(InvalidArgument, match="known are k, features"):
        fields({"zzz": 1}, ("k", "features"), "the body")


def test_shown_of_a_huge_value_is_short() -> None:
    assert shown("x" * 10**6).startswith("'xxx")
    assert shown([[1] * 10**6] * 10).startswith("[[1, 1,")
    assert shown(True) == "true"
    assert shown(None) == "null"


@given(json_values)
def test_shown_is_short(value: Any) -> None:
    assert len(shown(value)) <= SHOWN_MAX + 1


usual_values = st.integers(-5, 5) | st.floats(-1, 1) | st.lists(st.integers(-5, 5), max_size=3)


@given(
    st.dictionaries(st.text(max_size=2), usual_values, max_size=5), st.dictionaries(st.text(max_size=2), json_values)
)
def test_columns_of_one_example_are_those_of_each_feature_alone(usual: dict[str, Any], odd: dict[str, Any]) -> None:
    table = usual | odd
    try:
        alone = {name: column([value], f"features.{name}") for name, value in table.items()}
    except InvalidArgument:
        with pytest.raises(InvalidArgument) as refused:
            columns_of_one(table, "features")
        assert str(refused.value).split()[0].startswith("features.")
        return
    together = columns_of_one(table, "features")
    assert list(together) == list(alone)
    for name, one in alone.items():
        assert together[name].values.dtype == one.values.dtype
        assert _lists(together[name]) == _lists(one)
