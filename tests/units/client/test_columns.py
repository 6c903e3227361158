"""Packing of feature values, judged by a reading of the bytes that shares no code with it."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rowcast_client import Column, InvalidArgument, calls
from rowcast_client.columns import pack_column, pack_ids, pack_requests, pack_vectors
from rowcast_client.stubs import embedding_service_pb2 as pb

INT64 = st.integers(-(2**63), 2**63 - 1)
FLOAT32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def unpacked(column: pb.Column, count: int) -> list[list[Any]]:
    """Values per example, read by struct alone."""
    kind = column.WhichOneof("values")
    if kind == "strings":
        values: list[Any] = list(column.strings.values)
    else:
        letter, size = {"int64s": ("q", 8), "int32s": ("i", 4), "float32s": ("f", 4)}[str(kind)]
        data = getattr(column, str(kind))
        values = list(struct.unpack(f"<{len(data) // size}{letter}", data))
    if not column.offsets:
        width = len(values) // count
        return [values[position * width : (position + 1) * width] for position in range(count)]
    offsets = struct.unpack(f"<{count + 1}i", column.offsets)
    return [values[offsets[position] : offsets[position + 1]] for position in range(count)]


@given(
    st.one_of(
        st.lists(INT64, min_size=1), st.lists(TEXT, min_size=1), st.lists(FLOAT32, min_size=1)
    )
)
def test_pack_column_of_scalars_keeps_every_value(values: list[Any]) -> None:
    column = pack_column("feature", values)
    assert not column.offsets
    assert unpacked(column, len(values)) == [[value] for value in values]


@given(
    st.one_of(
        st.lists(st.lists(INT64, max_size=5), min_size=1, max_size=6),
        st.lists(st.lists(TEXT, max_size=5), min_size=1, max_size=6),
        st.lists(st.lists(FLOAT32, max_size=5), min_size=1, max_size=6),
    )
)
def test_pack_column_of_bags_keeps_values_and_borders(bags: list[list[Any]]) -> None:
    assert unpacked(pack_column("feature", bags), len(bags)) == bags


@given(
    st.lists(st.lists(st.tuples(INT64, FLOAT32), max_size=5), min_size=1, max_size=6), st.booleans()
)
def test_pack_column_of_weighted_bags_keeps_weights_beside_ids(
    bags: list[list[Any]], as_dict: bool
) -> None:
    pairs = [([id_ for id_, _ in bag], [weight for _, weight in bag]) for bag in bags]
    values = [{"ids": ids, "weights": weights} for ids, weights in pairs] if as_dict else pairs
    column = pack_column("feature", values)
    assert unpacked(column, len(bags)) == [ids for ids, _ in pairs]
    flat = [weight for _, weights in pairs for weight in weights]
    assert list(struct.unpack(f"<{len(flat)}f", column.weights)) == flat


def test_pack_column_weights_where_some_examples_have_none_fills_ones() -> None:
    column = pack_column("feature", [[7], ([8, 9], [0.5, 2.0])])
    assert struct.unpack("<3f", column.weights) == (1.0, 0.5, 2.0)


@pytest.mark.parametrize(
    ("value", "kind", "values"),
    [
        (np.array([1, 2], np.int32), "int32s", [1, 2]),
        (np.array([1, 2], np.uint8), "int64s", [1, 2]),
        (np.array([0.5, 2]), "float32s", [0.5, 2.0]),
        (np.array(["a", "b"]), "strings", ["a", "b"]),
        (np.array([[1.0, 2.0], [3.0, 4.0]]), "float32s", [1.0, 2.0, 3.0, 4.0]),
        ([[1, 2], [3, 4]], "int64s", [1, 2, 3, 4]),
        (np.int64(5), "int64s", [5]),
        (np.str_("a"), "strings", ["a"]),
        ({"ids": 5, "weights": 1}, "int64s", [5]),
        (np.float32(0.5), "float32s", [0.5]),
        ([1, 0.5], "float32s", [1.0, 0.5]),
        ([], "int64s", []),
    ],
)
def test_pack_requests_of_one_value_takes_its_kind(
    value: Any, kind: str, values: list[Any]
) -> None:
    column = pack_requests({"feature": value})["feature"]
    assert column.WhichOneof("values") == kind
    assert unpacked(column, 1) == [values]


def test_pack_column_where_some_bags_are_empty_takes_the_kind_of_the_others() -> None:
    column = pack_column("feature", [[], ["a"], np.zeros(0)])
    assert unpacked(column, 3) == [[], ["a"], []]


def test_pack_column_of_an_array_of_lists_takes_each_as_a_bag() -> None:
    bags = np.array([[1], [2, 3]], object)
    assert unpacked(pack_column("feature", bags), 2) == [[1], [2, 3]]


def test_pack_column_of_no_strings_is_that_of_an_empty_list() -> None:
    assert (
        pack_column("feature", Column(np.zeros(0, np.str_), [0, 0])).WhichOneof("values")
        == "int64s"
    )
    assert pack_column("feature", np.array([[]], np.str_)).WhichOneof("values") == "int64s"


def test_pack_column_of_a_matrix_gives_each_example_its_row() -> None:
    matrix = np.arange(6).reshape(3, 2)
    assert unpacked(pack_column("feature", matrix), 3) == [[0, 1], [2, 3], [4, 5]]


def test_pack_requests_of_columns_takes_them_as_packed() -> None:
    packed = pack_requests(
        {"user": Column([1, 2]), "history": Column(np.array([5, 6, 7]), [0, 1, 3], [1, 2, 3])}
    )
    assert unpacked(packed["user"], 2) == [[1], [2]]
    assert unpacked(packed["history"], 2) == [[5], [6, 7]]
    assert struct.unpack("<3f", packed["history"].weights) == (1, 2, 3)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (True, "holds bool"),
        ([1, True], "holds bool, int"),
        (None, "NoneType"),
        ([1, "a"], "holds int, str"),
        ([1.5, "a"], "holds float, str"),
        (2**63, "beyond 64 bits"),
        ([2**63], "beyond 64 bits"),
        ([np.int64(1), 2**64], "beyond 64 bits"),
        (np.array([2**63], np.uint64), "beyond 64 bits"),
        (np.array([True]), "array of bool"),
        ([[1, 2], [3]], "unequal lengths"),
        ([1, [2]], "unequal lengths"),
        ([["a"], ["b", "c"]], "unequal lengths"),
        ([np.array([2**63], np.uint64), [1]], "beyond 64 bits"),
        (b"bytes", "holds bytes"),
        ({"ids": [1]}, "expected 'ids' and 'weights'"),
        (([1, 2], [0.5]), "2 ids but 1 weights"),
        (([1], ["a"]), "weights that are strings"),
        ("\ud800", "not Unicode text"),
    ],
)
def test_pack_requests_of_an_invalid_feature_value_names_feature_and_problem(
    value: Any, message: str
) -> None:
    with pytest.raises(InvalidArgument, match="feature 'history'") as caught:
        pack_requests({"history": value})
    assert message in str(caught.value)


def test_pack_requests_of_a_name_that_is_no_text_is_rejected() -> None:
    with pytest.raises(InvalidArgument, match="name of feature 5 is of type int"):
        pack_requests({5: 1})  # type: ignore[dict-item]


def test_pack_requests_where_kinds_differ_between_requests_is_rejected() -> None:
    with pytest.raises(InvalidArgument, match="feature 'history' holds int, str"):
        pack_requests([{"history": [1]}, {"history": ["a"]}])


@pytest.mark.parametrize("requests", [[], "user=5", 5, [5], [{"user": 1}, 5]])
def test_pack_requests_of_another_type_is_rejected(requests: Any) -> None:
    with pytest.raises(InvalidArgument, match="request"):
        pack_requests(requests)


def test_pack_requests_where_one_lacks_a_feature_names_it() -> None:
    with pytest.raises(InvalidArgument, match="'hour' is in only some of the 2 requests"):
        pack_requests([{"user": 1, "hour": 3}, {"user": 2}])


@pytest.mark.parametrize("ids", ["abc", 5, [1.5], {"a": 1}, [None], [1, "a"]])
def test_pack_ids_of_another_type_is_rejected(ids: Any) -> None:
    with pytest.raises(InvalidArgument, match="exclude"):
        pack_ids("exclude", ids)


def test_pack_vectors_of_several_arrays_returns_their_sizes() -> None:
    assert pack_vectors([0.5, 1.0]) == (struct.pack("<2f", 0.5, 1.0), None)
    assert pack_vectors(np.ones((1, 2))) == (struct.pack("<2f", 1, 1), None)
    assert pack_vectors(np.ones((3, 2))) == (struct.pack("<6f", *[1] * 6), [3])
    assert pack_vectors(np.ones((3, 1, 2))) == (struct.pack("<6f", *[1] * 6), [1, 1, 1])
    assert pack_vectors([np.ones((2, 2)), np.ones((1, 2))]) == (
        struct.pack("<6f", *[1] * 6),
        [2, 1],
    )


@pytest.mark.parametrize("vectors", [[], ["a"], [[1.0], [1.0, 2.0]], np.ones((2, 2, 2, 2))])
def test_pack_vectors_of_another_shape_is_rejected(vectors: Any) -> None:
    with pytest.raises(InvalidArgument, match="vectors"):
        pack_vectors(vectors)


class Series:
    """A column as pandas and polars have it: not a sequence, but an array on request."""

    def __init__(self, *values: Any) -> None:
        self._values = np.array(values)

    def __len__(self) -> int:
        return len(self._values)

    def __array__(self, *_: Any, **__: Any) -> np.ndarray[Any, Any]:
        return self._values


def test_series_are_lists() -> None:
    series: Any = Series(3, 5)
    listed: Any = [3, 5]
    assert pack_ids("ids", series) == pack_ids("ids", listed)
    assert pack_column("user", series) == pack_column("user", listed)
    by_series = calls.rank({"user": 1}, series, model="m")
    assert by_series.request == calls.rank({"user": 1}, listed, model="m").request


def test_pack_ids_of_a_large_value_shows_only_a_part_of_it() -> None:
    with pytest.raises(InvalidArgument) as caught:
        pack_ids("ids", {str(number): number for number in range(10_000)})  # type: ignore[arg-type]
    assert len(str(caught.value)) < 300
