"""Arrays in every form of named tensors are read as they were, and an input's values are the same
in whichever of the three forms it is sent. `tests/differential/test_tensor_protos.py` has the
messages of TensorFlow, and `tests/cases/test_tensor_requests.py` what is refused.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from numpy.typing import NDArray

from tensors.arrays import DeclaredShapes, Ragged, SentArrays
from tensors.errors import TensorError, TooMuch
from tensors.examples import Examples
from tensors.input_values import InputTensors, converted, texts
from tensors.json_tensors import json_value, read_columns, read_features, read_rows
from tensors.open_inference import bytes_of, input_tensor, read_bytes, read_contents, read_json
from tests.differential import tensor_forms as forms

NUMBERS = ("bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
SHAPES = arrays_of.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
FILLED = arrays_of.array_shapes(min_dims=0, max_dims=3, max_side=4)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=5)
LISTS = st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=1, max_size=5)


def strings(shape: Any) -> Any:
    return arrays_of.arrays(object, shape, elements=TEXTS)


ARRAYS = st.one_of(
    *[arrays_of.arrays(np.dtype(name), SHAPES) for name in NUMBERS],
    SHAPES.flatmap(strings),
)


def assert_same(read: Any, expected: NDArray[Any]) -> None:
    assert read.dtype == expected.dtype
    assert read.shape == expected.shape
    np.testing.assert_array_equal(read, expected)


@given(ARRAYS)
def test_tensor_of_open_inference_is_the_same_in_each_form(array: NDArray[Any]) -> None:
    shape = DeclaredShapes(1, forms.Limits()).checked(list(array.shape), "x")
    tensor = input_tensor("x", forms.datatype_of(array), shape)
    data = forms.bytes_of(array)
    assert_same(read_bytes(tensor, data), array)
    assert bytes_of(array) == data
    if array.dtype != np.float16:
        contents = forms.message({"x": array}, raw=False).inputs[0].contents
        assert_same(read_contents(tensor, contents), array)
    # JSON has no other numbers.
    if array.dtype.kind != "f" or np.isfinite(array).all():
        for value in (array.reshape(-1).tolist(), array.tolist()):
            if isinstance(value, list):
                assert_same(read_json(tensor, json.loads(json.dumps(value))), array)


@given(
    FILLED.flatmap(
        lambda shape: st.one_of(
            strings(shape),
            *[arrays_of.arrays(np.dtype(name), shape) for name in ("bool", "i8", "f8")],
        )
    )
)
def test_lists_of_json_are_tensors_of_their_shape_and_kind(array: NDArray[Any]) -> None:
    arrays = [read_columns({"x": array.tolist()}, forms.Limits())["x"]]
    if array.ndim:
        arrays.append(read_rows([{"x": row} for row in array.tolist()], forms.Limits())["x"])
        arrays.append(read_rows(array.tolist(), forms.Limits())[""])
        np.testing.assert_array_equal(np.array(json_value(array), array.dtype), array)
    for read in arrays:
        assert_same(read, array)


@given(st.lists(TEXTS, min_size=1))
def test_bytes_of_json_are_texts(strings: list[str]) -> None:
    encoded = [{"b64": base64.b64encode(text.encode()).decode()} for text in strings]
    for values in (encoded, [*strings[:1], *encoded[1:]]):
        array = read_columns({"x": values}, forms.Limits())["x"]
        assert isinstance(array, np.ndarray)
        assert texts(array, "x").tolist() == strings


@given(LISTS, st.integers(0, 3))
def test_lists_are_the_same_values_in_each_form(lists: list[list[int]], gaps: int) -> None:
    flat = np.array([value for row in lists for value in row], np.int64)
    splits = np.cumsum([0, *map(len, lists)])
    indices = [
        [row, gaps + 2 * position]
        for row, part in enumerate(lists)
        for position in range(len(part))
    ]
    by_form: dict[str, SentArrays] = {
        "ragged": {"x": flat, "x_1": splits},
        "sparse": {
            "x": np.array(indices, np.int64).reshape(-1, 2),
            "x_1": flat,
            "x_2": np.array([len(lists), 9]),
        },
        "lists of JSON": read_columns({"x": lists}, forms.Limits()),
        "examples": Examples(
            len(lists), [read_features({"x": part}, "x") for part in lists], {}, forms.Limits()
        ),
    }
    for form, tensors in by_form.items():
        reader = InputTensors(tensors, ["x"], forms.Limits())
        values, offsets, rows = reader.values("x")
        if offsets is None:
            offsets = np.arange(rows + 1) * (values.size // rows)
        assert converted(values, "int64", "x").tolist() == flat.tolist(), form
        assert (rows, offsets.tolist()) == (len(lists), splits.tolist()), form
        assert reader.read == set(tensors)
    # A further tensor that is an input of its own does not belong to another one.
    dense = InputTensors({"x": flat, "x_1": splits}, ["x", "x_1"], forms.Limits())
    assert dense.values("x").offsets is None


@given(
    st.lists(
        st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(0, 9), max_size=2)),
        min_size=1,
        max_size=6,
    ),
    st.dictionaries(st.sampled_from("abcd"), st.lists(st.integers(0, 9), max_size=2)),
)
def test_example_takes_the_features_that_it_lacks_from_the_context(
    listed: list[dict[str, list[int]]], context: dict[str, list[int]]
) -> None:
    examples = Examples(len(listed), listed, context, forms.Limits())
    assert set(examples) == set(context).union(*listed)
    for name in examples:
        expected = [example.get(name, context.get(name, [])) for example in listed]
        assert examples.rows(name) == expected
        array = examples[name]
        if isinstance(array, Ragged):
            parts = np.split(array.values, array.offsets[1:-1])
            assert [part.tolist() for part in parts] == expected
        else:
            assert array.tolist() == expected


@given(
    st.sampled_from([name for name in NUMBERS if name != "bool"]).flatmap(
        lambda name: arrays_of.arrays(np.dtype(name), arrays_of.array_shapes(max_dims=2))
    )
)
def test_numbers_of_any_type_are_converted_or_refused(array: NDArray[Any]) -> None:
    if array.dtype.kind == "f":
        with pytest.raises(TensorError, match="int64 was expected"):
            converted(array, "int64", "x")
    elif array.max() > np.iinfo(np.int64).max:
        with pytest.raises(TensorError, match="fits int64"):
            converted(array, "int64", "x")
    else:
        assert converted(array, "int64", "x").tolist() == array.reshape(-1).tolist()
    with np.errstate(over="ignore"):
        expected = array.astype(np.float32)
    if (np.isinf(expected) & np.isfinite(array)).any():
        with pytest.raises(TensorError, match="fits float32"):
            converted(array, "float32", "x")
    else:
        assert_same(converted(array, "float32", "x"), expected.reshape(-1))
    with pytest.raises(TensorError, match="string was expected"):
        converted(array, "string", "x")


def test_values_that_stand_for_many_are_converted_once() -> None:
    text = b"x" * 10_000_000
    repeated = np.broadcast_to(np.array([text], object), (100_000, 1))
    decoded = texts(repeated, "x")
    assert decoded.shape == (100_000,)
    assert decoded[0] is decoded[-1]


PAIR = {"x": [1], "y": [2]}


@pytest.mark.parametrize(
    ("limit", "read"),
    [
        ("max_features", lambda limits: DeclaredShapes(2, limits)),
        ("max_features", lambda limits: Examples(1, [PAIR], {}, limits)),
        ("max_features", lambda limits: read_columns(PAIR, limits)),
        ("max_features", lambda limits: read_rows([PAIR], limits)),
        ("max_queries", lambda limits: Examples(2, [], {}, limits)),
        ("max_values", lambda limits: DeclaredShapes(1, limits).checked([2, 0], "x")),
        ("max_values", lambda limits: Examples(1, [{}], {"x": [1, 2]}, limits)),
    ],
)
def test_more_than_a_limit_is_named(limit: str, read: Callable[[forms.Limits], Any]) -> None:
    with pytest.raises(TooMuch) as rejection:
        read(forms.Limits()._replace(**{limit: 1}))
    assert (rejection.value.limit, rejection.value.maximum) == (limit, 1)
