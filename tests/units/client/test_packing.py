"""What the client makes of arguments: packed values, judged by a reading of the bytes that shares
no code with it; filters; and what it rejects before anything is sent, by its name.

`tests/cases` compares the calls with JSON bodies of the same content.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rowcast_client import AsyncClient, Client, Column, InvalidArgument, calls, near, where
from rowcast_client.stubs import embedding_service_pb2 as pb

WIDTHS = {"int64s": ("q", 8), "int32s": ("i", 4), "float32s": ("f", 4)}


def packed(values: Any) -> pb.Column:
    """Returns the column of a feature, of one example or of several."""
    examples = {"f": values}
    if isinstance(values, list):
        examples = [{"f": value} for value in values]  # type: ignore[assignment]
    column: pb.Column = calls.embed(examples).request.features["f"]
    return column


def unpacked(column: pb.Column, count: int) -> list[list[Any]]:
    """Values per example, read by struct alone."""
    kind = str(column.WhichOneof("values"))
    values: list[Any] = list(column.strings.values)
    if kind != "strings":
        letter, size = WIDTHS[kind]
        data = getattr(column, kind)
        values = list(struct.unpack(f"<{len(data) // size}{letter}", data))
    if not column.offsets:
        width = len(values) // count
        return [values[position * width : (position + 1) * width] for position in range(count)]
    offsets = struct.unpack(f"<{count + 1}i", column.offsets)
    return [values[offsets[position] : offsets[position + 1]] for position in range(count)]


class Series:
    """A column as pandas and polars have it: not a sequence, but an array on request."""

    def __init__(self, *values: Any) -> None:
        self._values = np.array(values)

    def __len__(self) -> int:
        return len(self._values)

    def __array__(self, *_: Any, **__: Any) -> np.ndarray[Any, Any]:
        return self._values


@pytest.mark.parametrize(
    ("value", "kind", "values"),
    [
        (np.array([1, 2], np.int32), "int32s", [1, 2]),
        (np.array([1, 2], np.uint8), "int64s", [1, 2]),
        (np.array([0.5, 2]), "float32s", [0.5, 2.0]),
        (np.array(["a", "b"]), "strings", ["a", "b"]),
        (np.array([[1.0, 2.0], [3.0, 4.0]]), "float32s", [1.0, 2.0, 3.0, 4.0]),
        (np.array([[]], np.str_), "int64s", []),
        (np.int64(5), "int64s", [5]),
        (np.str_("a"), "strings", ["a"]),
        ({"ids": 5, "weights": 1}, "int64s", [5]),
    ],
)
def test_value_of_one_example_takes_its_kind(value: Any, kind: str, values: list[Any]) -> None:
    column = packed(value)
    assert (column.WhichOneof("values"), unpacked(column, 1)) == (kind, [values])


def test_weights_and_kinds_of_some_examples_are_those_of_all() -> None:
    assert struct.unpack("<3f", packed([[7], ([8, 9], [0.5, 2.0])]).weights) == (1.0, 0.5, 2.0)
    assert unpacked(packed([[], ["a"], np.zeros(0)]), 3) == [[], ["a"], []]


def test_columns_are_packed_as_they_are() -> None:
    columns = {"user": Column([1, 2]), "history": Column(np.array([5, 6, 7]), [0, 1, 3], [1, 2, 3])}
    features = calls.embed(columns).request.features
    assert unpacked(features["user"], 2) == [[1], [2]]
    assert unpacked(features["history"], 2) == [[5], [6, 7]]
    assert struct.unpack("<3f", features["history"].weights) == (1, 2, 3)


@pytest.mark.parametrize(
    ("vectors", "sizes"),
    [
        ([0.5, 1.0], None),
        (np.ones((1, 2)), None),
        (np.ones((3, 2)), [0, 3]),
        (np.ones((3, 1, 2)), None),
        ([np.ones((2, 2)), np.ones((1, 2))], [0, 2, 3]),
    ],
)
def test_vectors_are_one_query_or_several(vectors: Any, sizes: list[int] | None) -> None:
    request = calls.retrieve(vectors=vectors).request
    values = np.concatenate([np.ravel(array) for array in vectors]).astype("<f4")
    assert request.vectors == values.tobytes()
    if sizes is not None:
        assert list(np.frombuffer(request.query_offsets, "<i4")) == sizes


def test_series_are_lists() -> None:
    by_series = calls.rank({"user": 5}, Series(3, 5)).request  # type: ignore[arg-type]
    assert by_series == calls.rank({"user": 5}, [3, 5]).request


def test_arguments_take_numbers_of_numpy_and_names_of_any_iterable() -> None:
    options: dict[str, Any] = {
        "k": np.int32(3),
        "attributes": {"title": 0},
        "exact": np.bool_(True),
    }
    request = calls.retrieve({"user": 5}, **options).request
    assert (request.k, list(request.attributes), request.exact) == (3, ["title"], True)


OF_NUMPY: Any = np.float32(0.5)
YEAR = where("year").at_least(1990)
FILTERS: list[tuple[Any, Any]] = [
    (where("genres").any_of("Drama", "War"), {"genres": {"allow": ["Drama", "War"]}}),
    (where("seller").none_of(7, 2**62), {"seller": {"deny": [7, 2**62]}}),
    (where("adult").any_of(False), {"adult": {"allow": [False]}}),
    (where("year").between(1990, 2000.5), {"year": {"ge": 1990, "le": 2000.5}}),
    (where("year").above(1) & where("year").below(2), {"year": {"gt": 1, "lt": 2}}),
    (where("a").at_most(OF_NUMPY), {"a": {"le": 0.5}}),
    (
        where("a").any_of("x") & where("a").any_of("y") & {"year": {"ge": 1}},
        {"all": [{"a": {"allow": ["x"]}}, {"a": {"allow": ["y"]}}], "year": {"ge": 1}},
    ),
    (
        where("a").any_of("x") | YEAR | {"a": {"lt": 1}},
        {"any": [{"a": {"allow": ["x"]}}, {"year": {"ge": 1990}}, {"a": {"lt": 1}}]},
    ),
    (
        {"a": {"lt": 1}} | where("b").is_null() & where("c").is_not_null(),
        {"any": [{"a": {"lt": 1}}, {"b": {"is_null": True}, "c": {"is_null": False}}]},
    ),
    (
        (where("a").above(1) | YEAR) & (where("c").above(3) | {"a": {"lt": 0}}),
        {
            "all": [
                {"any": [{"a": {"gt": 1}}, {"year": {"ge": 1990}}]},
                {"any": [{"c": {"gt": 3}}, {"a": {"lt": 0}}]},
            ]
        },
    ),
    (
        ~(where("a").below(9) | YEAR),
        {"none": [{"any": [{"a": {"lt": 9}}, {"year": {"ge": 1990}}]}]},
    ),
    (
        near(1, 2, radius_m=3, latitude_attribute="lat") & YEAR,
        {
            "near": [
                {
                    "latitude": 1,
                    "longitude": 2,
                    "radius_m": 3,
                    "latitude_attribute": "lat",
                    "longitude_attribute": "longitude",
                }
            ],
            "year": {"ge": 1990},
        },
    ),
    (
        {"any": {"ge": 3}, "near": {"is_null": False}},
        {"any": {"ge": 3}, "near": {"is_null": False}},
    ),
]


@pytest.mark.parametrize(("built", "conditions"), FILTERS)
def test_filter_is_that_of_its_json(built: Any, conditions: Any) -> None:
    request = calls.retrieve({"user": 5}, filter=built).request
    assert request == calls.retrieve({"user": 5}, filter=conditions).request
    extended = YEAR
    extended |= built
    assert extended == YEAR | built


USER = {"user": 5}
WRONG: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], str]] = [
    (calls.retrieve, (), {}, "exactly one of context"),
    (calls.retrieve, (USER,), {"exclude_ids": [[1], 2]}, "exclude_ids"),
    (calls.retrieve, ([USER, USER],), {"exclude_ids": [[1]]}, "1 lists for 2 requests"),
    (calls.retrieve, (USER,), {"k": 2**31}, "k is"),
    (calls.retrieve, (USER,), {"model": 5}, "model is 5"),
    (calls.retrieve, (USER,), {"version": "1"}, "version is '1'"),
    (calls.retrieve, (USER,), {"version": 1, "label": "live"}, "label is 'live'"),
    (calls.retrieve, (), {"vectors": [10**400, 1]}, "vectors"),
    (calls.retrieve, (), {"ids": {str(n): n for n in range(10_000)}}, "ids"),
    (calls.recommend, (USER,), {"sources": [{"index": "", "ids": [1]}]}, "exactly one of index"),
    (calls.recommend, (USER,), {"sources": [{"list": "", "min_count": True}]}, "[0].min_count"),
    (calls.retrieve, (USER,), {"not_found": "drop"}, "'error' or 'skip'"),
    (calls.retrieve, (USER,), {"exact": "no"}, "exact is 'no'"),
    (calls.retrieve, (USER,), {"attributes": "title"}, "attributes is 'title'"),
    (calls.retrieve, (USER,), {"crowding": {"seller": 2.5}}, "crowding.seller"),
    (calls.retrieve, (USER,), {"filter": {"near": [{"latitude": 1}]}}, "near[0].longitude"),
    (calls.retrieve, (USER,), {"filter": {"any": [{"a": {"ge": True}}]}}, "any[0].a.ge"),
    (calls.rank, (USER, [[1], [2]]), {}, "candidate_ids"),
    (calls.rank, ([USER, USER], [[1]]), {}, "2 contexts"),
    (calls.rank, ([USER], [[1]]), {"candidate_features": [{"year": Column([1])}]}, "Column"),
    (
        calls.rank,
        ([USER, USER], [[1], [2]]),
        {"candidate_features": [{"a": [1]}, {"b": [1]}]},
        "the same",
    ),
    (calls.retrieve, (USER,), {"filter": ["Drama"]}, "{'genres': {'allow': ['Drama']}}"),
    # What `where("a") == 5` is.
    (calls.retrieve, (USER,), {"filter": False}, "where('genres').any_of('Drama')"),
    (calls.retrieve, (7,), {}, "the features are 7: expected a dict"),
    (calls.embed, ({"f": {1}},), {}, "'f' holds set: expected all integers, all strings or"),
    (calls.embed, ({"f": 2**63},), {}, "from -2^63 to 2^63 - 1"),
    (calls.embed, ([{"f": [1]}, {"f": ["a"]}],), {}, "'f' holds int, str"),
    (calls.embed, ({5: 1},), {}, "feature is 5"),
    *[
        (calls.embed, ({"f": value},), {}, "feature 'f'")
        for value in (
            *(True, [1, True], None, [1, "a"], 2**63, [np.int64(1), 2**64], b"bytes", "\ud800"),
            *(np.array([2**63], np.uint64), np.array([True]), [[1, 2], [3]], [1, [2]]),
            *({"ids": [1]}, ([1, 2], [0.5]), ([1], ["a"])),
        )
    ],
]


@pytest.mark.parametrize(("call", "arguments", "options", "words"), WRONG)
def test_call_with_an_invalid_argument_names_it(
    call: Callable[..., Any], arguments: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        call(*arguments, **options)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 400


def test_call_with_an_option_that_it_does_not_have_names_it() -> None:
    for client in (Client, AsyncClient):
        with pytest.raises(TypeError, match=rf"^{client.__name__}: .*'timeout'.* timeout_s, "):
            client("http://127.0.0.1:1", timeout=5)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="'modle'"):
        calls.embed(USER, modle="m")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("method", "arguments", "options", "words"),
    [
        ("recommend", (USER,), {"timeout": 5}, "recommend: .*'timeout', did you mean 'timeout_s'?"),
        ("recommend", (USER,), {"top_k": 5}, "recommend: .*'top_k'; its arguments are .* k, "),
        (
            "lookup",
            ([5],),
            {"feature": "user_id"},
            "lookup: .*'feature'; its arguments are feature, ",
        ),
        ("embed", (), {}, "embed: .*'features'; its arguments are features, tower, "),
        # The function that packs every change would take it.
        ("delete_candidates", ([5],), {"features": {}}, "delete_candidates: .*'features'"),
    ],
)
def test_method_with_arguments_that_it_does_not_take_lists_its_own(
    method: str, arguments: Any, options: dict[str, Any], words: str
) -> None:
    with Client("http://127.0.0.1:1") as client, pytest.raises(TypeError, match=f"^{words}"):
        getattr(client, method)(*arguments, **options)
