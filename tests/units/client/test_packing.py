"""What the client makes of arguments that JSON does not have: arrays, series, columns, numbers of
NumPy and filters that are built; and what it rejects before anything is sent, by its name.

`tests/cases` compares calls of plain values with JSON bodies of the same content.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rowcast_client import (
    AsyncClient,
    Client,
    Column,
    InvalidArgument,
    Neighbors,
    RankedCandidates,
    calls,
    near,
    where,
)


class Series:
    """A column as pandas and polars have it: not a sequence, but an array on request."""

    def __init__(self, *values: Any) -> None:
        self._values = np.array(values)

    def __len__(self) -> int:
        return len(self._values)

    def __array__(self, *_: Any, **__: Any) -> np.ndarray[Any, Any]:
        return self._values


def embedded(values: Any) -> calls.Call[Any]:
    return calls.embed({"f": values})


def retrieved(vectors: Any) -> calls.Call[Any]:
    return calls.retrieve(vectors=vectors)


SAME: list[tuple[calls.Call[Any], calls.Call[Any]]] = [
    (embedded(np.array([1, 2], np.uint8)), embedded([1, 2])),
    (embedded(np.array([0.5, 2])), embedded([0.5, 2.0])),
    (embedded(np.array(["a", "b"])), embedded(["a", "b"])),
    (embedded(np.array([[1.0, 2.0], [3.0, 4.0]])), embedded([1.0, 2.0, 3.0, 4.0])),
    (embedded(np.array([[]], np.str_)), embedded([])),
    (embedded(np.int64(5)), embedded(5)),
    (embedded(np.str_("a")), embedded("a")),
    (embedded({"ids": 5, "weights": 1}), embedded(([5], [1.0]))),
    (
        calls.embed([{"f": [7]}, {"f": ([8, 9], [0.5, 2.0])}]),
        calls.embed([{"f": ([7], [1.0])}, {"f": ([8, 9], [0.5, 2.0])}]),
    ),
    (
        calls.embed([{"f": []}, {"f": ["a"]}, {"f": np.zeros(0)}]),
        calls.embed([{"f": []}, {"f": ["a"]}, {"f": []}]),
    ),
    (
        calls.embed({"f": Column(np.array([5, 6, 7]), [0, 1, 3], [1, 2, 3])}),
        calls.embed([{"f": ([5], [1.0])}, {"f": ([6, 7], [2.0, 3.0])}]),
    ),
    (calls.embed({"f": Column([1, 2])}), calls.embed([{"f": 1}, {"f": 2}])),
    (calls.rank({"f": 5}, Series(3, 5)), calls.rank({"f": 5}, [3, 5])),  # type: ignore[arg-type]
    (retrieved(np.ones((1, 2))), retrieved([1.0, 1.0])),
    (retrieved(np.ones((3, 2))), retrieved([[1.0, 1.0]] * 3)),
    (retrieved(np.ones((3, 1, 2))), retrieved([[[1.0, 1.0]]] * 3)),
    (
        retrieved([np.ones((2, 2)), np.ones((1, 2))]),
        retrieved([[[1.0, 1.0]] * 2, [[1.0, 1.0]]]),
    ),
    (
        calls.retrieve({"f": 5}, k=np.int32(3), attributes={"title": 0}, exact=np.bool_(True)),  # type: ignore[arg-type]
        calls.retrieve({"f": 5}, k=3, attributes=["title"], exact=True),
    ),
]
"""Calls of arrays and other values, and of the plain values that they stand for."""


@pytest.mark.parametrize(("call", "plain"), SAME)
def test_call_is_that_of_plain_values(call: calls.Call[Any], plain: calls.Call[Any]) -> None:
    assert call.request == plain.request


def test_integers_of_32_bits_are_sent_as_they_are() -> None:
    column = embedded(np.array([1, 2], np.int32)).request.features["f"]
    assert column.int32s == np.array([1, 2], "<i4").tobytes()


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
    (calls.retrieve, (USER,), {"model": 5}, "model is 5"),
    (calls.retrieve, (USER,), {"version": "1"}, "version is '1'"),
    (calls.retrieve, (USER,), {"version": 1, "label": "live"}, "label is 'live'"),
    (calls.retrieve, (), {"vectors": [10**400, 1]}, "vectors"),
    (calls.retrieve, (), {"ids": {str(n): n for n in range(10_000)}}, "ids"),
    (calls.recommend, (USER,), {"sources": [{"index": "", "ids": [1]}]}, "exactly one of index"),
    (calls.recommend, (USER,), {"sources": [{"list": "", "min_count": True}]}, "[0].min_count"),
    (calls.retrieve, (USER,), {"filter": {"near": [{"radius_m": 3}]}}, "[0].longitude: expected"),
    (calls.retrieve, (USER,), {"not_found": "drop"}, "'error' or 'skip'"),
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


def test_attribute_that_was_not_requested_is_named_with_those_that_were() -> None:
    titles = {"title": ["Heat"]}
    (neighbor,) = Neighbors(np.array([1]), np.array([0.5], np.float32), titles)
    assert neighbor.attributes == {"title": "Heat"}
    with pytest.raises(KeyError, match="year was not requested; the response has 'title'"):
        neighbor.attributes["year"]
    # Where nothing was requested, too, of all neighbors or candidates of a request.
    one = np.array([1])
    score = np.array([0.5], np.float32)
    for values in (Neighbors(one, score).attributes, RankedCandidates(one, score, one)[0].heads):
        with pytest.raises(KeyError, match=r"has none\. Name it in attributes=\[\.\.\.\]"):
            values["watch"]
        assert values.get("watch") is None


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
        ("recommend", (USER,), {"top_k": 5}, "recommend: .*'top_k', did you mean 'k'.* are .* k, "),
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


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gte", "has no 'gte' (did you mean 'at_least'?); it has any_of, none_of, "),
        ("eq", "did you mean 'any_of'?"),
        ("deny", "did you mean 'none_of'?"),
        ("is_nul", "did you mean 'is_null'?"),
        ("matches", "has no 'matches'; it has any_of, "),
    ],
)
def test_method_that_conditions_do_not_have_names_the_one_that_was_meant(
    name: str, words: str
) -> None:
    with pytest.raises(AttributeError, match=re.escape(words)):
        getattr(where("year"), name)
