"""JSON values to packed columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.codec.columns import column, columns_of_one, fields, flat, shown
from service.errors import InvalidArgument

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("values", "dtype", "packed"),
    [
        (
            [0, -1, 2**53 + 1, 2**63 - 1, -(2**63)],
            np.int64,
            [0, -1, 2**53 + 1, 2**63 - 1, -(2**63)],
        ),
        (["a", "007", ""], object, ["a", "007", ""]),
        ([5, "9007199254740993", "-3"], np.int64, [5, 9007199254740993, -3]),
        ([1, 2.5], np.float32, [1.0, 2.5]),
        ([], np.int64, []),
    ],
)
def test_flat_of_one_kind_packs_values(values: list[Any], dtype: Any, packed: list[Any]) -> None:
    actual = flat(values, "ids")
    assert actual.dtype == dtype
    assert actual.tolist() == packed


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([True], "holds true"),
        ([[1]], "[1]"),
        ([{"a": 1}], "'a'"),
        ([2**63], "an integer within int64"),
        ([1, "٣"], "mixes"),
        ([1, "9223372036854775808"], "an integer within int64"),
        ([1.5, "a"], "mixes numbers and strings"),
        ([1e39], "a number within float32"),
        ([-1.5e300, 1.0], "-1.5e+300"),
    ],
)
def test_flat_of_another_value_is_rejected_and_printed(values: list[Any], expected: str) -> None:
    with pytest.raises(InvalidArgument) as rejected:
        flat(values, "features.age")
    assert "features.age" in str(rejected.value)
    assert expected in str(rejected.value)


def _lists(packed: Any) -> list[Any]:
    return [None if part is None else part.tolist() for part in packed]


@pytest.mark.parametrize(
    ("examples", "packed"),
    [
        ([3, 4], [[3, 4], None, None]),
        ([[1, 2], [], [3]], [[1, 2, 3], [0, 2, 2, 3], None]),
        ([7, [1, 2]], [[7, 1, 2], [0, 1, 3], None]),
        ([[[1, 2], [3, 4], [5, 6.5]]], [[1, 2, 3, 4, 5, 6.5], [0, 6], None]),
        (
            [{"ids": [1, 2], "weights": [0.5, 2]}, [3], {"ids": [4]}],
            [[1, 2, 3, 4], [0, 2, 3, 4], [0.5, 2.0, 1.0, 1.0]],
        ),
    ],
)
def test_column_of_scalars_bags_weights_and_nested_lists_packs_them(
    examples: list[Any], packed: list[Any]
) -> None:
    assert _lists(column(examples, "history")) == packed


@pytest.mark.parametrize(
    ("examples", "expected"),
    [
        ([[[1, 2], [3]]], "different lengths"),
        ([[1, [2]]], "different lengths"),
        ([[[[[[[[[[1]]]]]]]]]], "more than 8 levels"),
        ([{"weights": [1]}], "ids is null"),
        ([{"ids": [1, 2], "weights": [1]}], "2 ids and 1 weights"),
        ([{"ids": [1], "weights": ["1"]}], "bag.weights holds '1'"),
        ([{"ids": [1], "weight": [1]}], "did you mean 'weights'"),
    ],
)
def test_column_of_another_shape_is_rejected(examples: list[Any], expected: str) -> None:
    with pytest.raises(InvalidArgument) as rejected:
        column(examples, "bag")
    assert expected in str(rejected.value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("featurs", "field 'featurs'; one of k, features was expected; did you mean 'features'"),
        ("zzz", "one of k, features was expected$"),
    ],
)
def test_fields_with_an_unknown_name_suggest_the_nearest_or_list_all(name: str, hint: str) -> None:
    with pytest.raises(InvalidArgument, match=hint):
        fields({name: {}}, ("k", "features"), "the body")


def test_shown_uses_the_terms_of_json() -> None:
    assert shown("x" * 10**6).startswith("'xxx")
    assert shown([[1] * 10**6] * 10).startswith("[[1, 1,")
    assert (shown(True), shown(None)) == ("true", "null")


usual_values = st.integers(-5, 5) | st.floats(-1, 1) | st.lists(st.integers(-5, 5), max_size=3)


@given(
    st.dictionaries(st.text(max_size=2), usual_values, max_size=5),
    st.dictionaries(st.text(max_size=2), json_values),
)
def test_columns_of_one_example_are_those_of_each_feature_alone(
    usual: dict[str, Any], odd: dict[str, Any]
) -> None:
    table = usual | odd
    try:
        alone = {name: column([value], f"features.{name}") for name, value in table.items()}
    except InvalidArgument:
        with pytest.raises(InvalidArgument) as rejected:
            columns_of_one(table, "features")
        assert str(rejected.value).split()[0].startswith("features.")
        return
    together = columns_of_one(table, "features")
    assert list(together) == list(alone)
    for name, expected in alone.items():
        assert together[name].values.dtype == expected.values.dtype
        assert _lists(together[name]) == _lists(expected)
