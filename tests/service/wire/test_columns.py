"""JSON values to packed columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import InvalidArgument
from service.wire.columns import SHOWN_MAX, column, columns_of_one, fields, flat, numbers, offsets_of, shown

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)


def test_flat_integers_become_int64_bit_for_bit() -> None:
    values = [0, -1, 2**53 + 1, 2**63 - 1, -(2**63)]
    packed = flat(values, "ids")
    assert packed.dtype == np.int64
    assert packed.tolist() == values


@given(
    st.lists(
        st.integers(-(2**63), 2**63 - 1)
        | st.sampled_from([True, 1.5, "7", None, 2**63, -(2**63) - 1, 10**30, [1], {"ids": [1]}]),
        max_size=6,
    )
)
def test_column_is_the_same_with_and_without_compiled_code(values: list[Any]) -> None:
    def packed() -> tuple[Any, ...]:
        try:
            values_, offsets, weights = column(values, "x")
        except InvalidArgument as problem:
            return (str(problem),)
        return values_.dtype, values_.tolist(), None if offsets is None else offsets.tolist(), weights

    found = packed()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("service.wire.columns.integers", None)
        assert packed() == found


def test_flat_strings_become_objects_of_str() -> None:
    packed = flat(["a", "007", ""], "ids")
    assert packed.dtype == object
    assert packed.tolist() == ["a", "007", ""]


def test_flat_integers_beside_their_decimal_strings_become_int64() -> None:
    assert flat([5, "9007199254740993", "-3"], "ids").tolist() == [5, 9007199254740993, -3]


def test_flat_any_fraction_makes_all_float32() -> None:
    packed = flat([1, 2.5], "x")
    assert packed.dtype == np.float32
    assert packed.tolist() == [1.0, 2.5]


def test_flat_nothing_is_an_empty_column_of_integers() -> None:
    packed = flat([], "ids")
    assert (packed.dtype, packed.shape) == (np.dtype(np.int64), (0,))


@pytest.mark.parametrize(
    ("values", "told"),
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
def test_flat_refuses_what_is_no_column_and_shows_it(values: list[Any], told: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        flat(values, "features.age")
    assert "features.age" in str(refused.value)
    assert told in str(refused.value)


def test_numbers_refuse_strings() -> None:
    with pytest.raises(InvalidArgument, match="'1'"):
        numbers([1.0, "1"], "vector")


@given(st.lists(st.integers(0, 100)))
def test_offsets_differ_by_the_lengths(lengths: list[int]) -> None:
    offsets = offsets_of(lengths)
    assert offsets.dtype == np.int64
    assert offsets[0] == 0
    assert np.diff(offsets).tolist() == lengths


def test_column_of_scalars_has_no_offsets() -> None:
    packed = column([3, 4], "user")
    assert packed.values.tolist() == [3, 4]
    assert packed.offsets is None
    assert packed.weights is None


def test_column_of_bags_keeps_each_length_and_the_empty_one() -> None:
    packed = column([[1, 2], [], [3]], "history")
    assert packed.values.tolist() == [1, 2, 3]
    assert packed.offsets is not None
    assert packed.offsets.tolist() == [0, 2, 2, 3]


def test_column_of_a_scalar_beside_a_bag_counts_as_a_bag_of_one() -> None:
    packed = column([7, [1, 2]], "history")
    assert packed.offsets is not None
    assert packed.offsets.tolist() == [0, 1, 3]


def test_column_weights_left_out_in_one_bag_are_ones_there() -> None:
    packed = column([{"ids": [1, 2], "weights": [0.5, 2]}, [3], {"ids": [4]}], "bag")
    assert packed.values.tolist() == [1, 2, 3, 4]
    assert packed.weights is not None
    assert packed.weights.dtype == np.float32
    assert packed.weights.tolist() == [0.5, 2.0, 1.0, 1.0]


def test_column_of_a_nested_dense_value_is_flattened_row_by_row() -> None:
    packed = column([[[1, 2], [3, 4], [5, 6.5]]], "image")
    assert packed.values.tolist() == [1, 2, 3, 4, 5, 6.5]
    assert packed.offsets is not None
    assert packed.offsets.tolist() == [0, 6]


@pytest.mark.parametrize(
    ("examples", "told"),
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
def test_column_refuses_other_shapes(examples: list[Any], told: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        column(examples, "bag")
    assert told in str(refused.value)


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


def test_fields_unknown_one_names_the_nearest() -> None:
    with pytest.raises(InvalidArgument, match="unknown field 'featurs'; did you mean 'features'"):
        fields({"featurs": {}}, ("k", "features"), "the body")


def test_fields_unlike_any_lists_the_known_ones() -> None:
    with pytest.raises(InvalidArgument, match="known are k, features"):
        fields({"zzz": 1}, ("k", "features"), "the body")


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
        other = together[name]
        assert other.values.dtype == one.values.dtype
        assert other.values.tolist() == one.values.tolist()
        for part in ("offsets", "weights"):
            mine, theirs = getattr(one, part), getattr(other, part)
            assert (mine is None) == (theirs is None)
            assert mine is None or mine.tolist() == theirs.tolist()
