"""Filters and the other options of retrieve and recommend: the same request as the JSON that people
write.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rowcast_client import InvalidArgument, calls, near, where
from rowcast_client.calls import Call

from service.codec import protobuf
from service.codec.operations import OPERATIONS
from service.config import ServiceSettings
from service.engine.calls import Condition, Filter, Target
from tests.units.client.plain import plain

SETTINGS = ServiceSettings(root=Path.cwd())
VIEWER = {"user": 5}


def sent(call: Call[Any]) -> Any:
    """The engine's request that a call becomes, as plain values."""
    operation = OPERATIONS[call.method.lower()]
    message = protobuf.parse(operation.request_class, call.request.SerializeToString())
    return plain(operation.read_message(message, Target("m"), SETTINGS))


def written(call: str, **body: Any) -> Any:
    """The engine's request that a JSON body becomes, as plain values."""
    return plain(OPERATIONS[call].read_json({"context": VIEWER, **body}, Target("m"), SETTINGS))


@pytest.mark.parametrize(
    ("built", "conditions"),
    [
        (where("genres").any_of("Drama", "Comedy"), {"genres": {"allow": ["Drama", "Comedy"]}}),
        (where("seller").none_of(7, 2**62), {"seller": {"deny": [7, 2**62]}}),
        (where("adult").any_of(False), {"adult": {"allow": [False]}}),
        (where("year").between(1990, 2000.5), {"year": {"ge": 1990, "le": 2000.5}}),
        (where("year").above(1990) & where("year").below(2000), {"year": {"gt": 1990, "lt": 2000}}),
        (
            where("year").at_least(-3) & where("mean").at_most(4.5),
            {"year": {"ge": -3}, "mean": {"le": 4.5}},
        ),
        (
            where("genres").any_of("Drama")
            & where("genres").none_of("War")
            & {"genres": {"deny": ["Horror"]}},
            {
                "all": [
                    {"genres": {"allow": ["Drama"], "deny": ["War"]}},
                    {"genres": {"deny": ["Horror"]}},
                ]
            },
        ),
        (
            where("genres").any_of("Drama") & where("genres").any_of("War") & {"year": {"ge": 1}},
            {
                "all": [{"genres": {"allow": ["Drama"]}}, {"genres": {"allow": ["War"]}}],
                "year": {"ge": 1},
            },
        ),
        (
            where("genres").any_of("Drama") | where("year").at_least(1990) | {"a": {"lt": 1}},
            {"any": [{"genres": {"allow": ["Drama"]}}, {"year": {"ge": 1990}}, {"a": {"lt": 1}}]},
        ),
        (
            {"a": {"lt": 1}} | where("year").is_null() & where("b").is_not_null(),
            {"any": [{"a": {"lt": 1}}, {"year": {"is_null": True}, "b": {"is_null": False}}]},
        ),
        (
            {"a": {"lt": 1}} & (where("year").above(2) | where("b").below(3)),
            {"a": {"lt": 1}, "any": [{"year": {"gt": 2}}, {"b": {"lt": 3}}]},
        ),
        (
            (where("a").above(1) | where("b").above(2)) & (where("c").above(3) | {"a": {"lt": 0}}),
            {
                "all": [
                    {"any": [{"a": {"gt": 1}}, {"b": {"gt": 2}}]},
                    {"any": [{"c": {"gt": 3}}, {"a": {"lt": 0}}]},
                ]
            },
        ),
        (
            ~(where("year").below(1990) | where("genres").any_of("War")),
            {"none": [{"any": [{"year": {"lt": 1990}}, {"genres": {"allow": ["War"]}}]}]},
        ),
        (
            near(52.5, 13, radius_m=5000) & where("year").above(1),
            {
                "near": [{"latitude": 52.5, "longitude": 13, "radius_m": 5000}],
                "year": {"gt": 1},
            },
        ),
        (
            near(1, 2, radius_m=3, latitude_attribute="lat", longitude_attribute="lon"),
            {
                "near": [
                    {
                        "latitude": 1,
                        "longitude": 2,
                        "radius_m": 3,
                        "latitude_attribute": "lat",
                        "longitude_attribute": "lon",
                    }
                ]
            },
        ),
        (
            {"any": {"ge": 3}, "near": {"is_null": False}},
            {"any": {"ge": 3}, "near": {"is_null": False}},
        ),
        ({"genres": {"allow": []}, "year": {}}, {"genres": {"allow": []}, "year": {}}),
        (
            {"seller": {"allow": np.array([1, 2])}, "year": {"lt": np.float32(0.5)}},
            {"seller": {"allow": [1, 2]}, "year": {"lt": 0.5}},
        ),
        ({}, {}),
    ],
)
@pytest.mark.parametrize("call", [calls.retrieve, calls.recommend])
def test_filter_equals_its_json(
    call: Callable[..., Call[Any]], built: Any, conditions: Any
) -> None:
    assert sent(call(VIEWER, filter=built)) == written(call.__name__, filter=conditions)


def test_filter_keeps_the_kinds_of_its_values() -> None:
    request = calls.retrieve(
        VIEWER, filter=where("year").between(1990, 2000.5), crowding={"seller": 3}
    ).request
    message = protobuf.parse(type(request), request.SerializeToString())
    read: Any = OPERATIONS["retrieve"].read_message(message, Target("m"), SETTINGS)
    assert read.filter == Filter({"year": Condition(ge=1990, le=2000.5)})
    assert (type(read.filter.conditions["year"].ge), read.crowding) == (int, {"seller": 3})


@pytest.mark.parametrize(
    ("filter", "message"),
    [
        (5, "filter is 5: expected conditions by attribute"),
        ({"year": 5}, "filter.year is 5: expected a dict of allow, deny"),
        ({"year": {"from": 5}}, "filter.year is {'from': 5}: expected a dict of allow"),
        ({5: {"ge": 5}}, "filter.5 is"),
        ({"any": []}, r"filter.any is \[\]: expected a list of at least one"),
        ({"any": "year"}, "filter.any is 'year': expected a list"),
        ({"none": [{"year": 5}]}, r"filter.none\[0\].year is 5: expected a dict of allow"),
        ({"all": [{}, 5]}, r"filter.all\[1\] is 5: expected conditions by attribute"),
        ({"near": [5]}, r"filter.near\[0\] is 5: expected a dict as `near` returns it"),
        (
            {"near": [{"latitude": 1, "longitude": 2}]},
            r"filter.near\[0\].radius_m is None: expected a number",
        ),
        (
            near(1, 2, radius_m=3, latitude_attribute=4),  # type: ignore[arg-type]
            r"filter.near\[0\].latitude_attribute is 4: expected a string",
        ),
        ({"year": {"is_null": 1}}, "filter.year.is_null is 1: expected True or False"),
        ({"year": {"ge": "5"}}, "filter.year.ge is '5': expected a number"),
        ({"year": {"ge": True}}, "filter.year.ge is True: expected a number"),
        ({"year": {"ge": 2**63}}, f"filter.year.ge is {2**63}: expected a number"),
        ({"genres": {"allow": "Drama"}}, "filter.genres.allow is 'Drama': expected a list of ids"),
        ({"genres": {"allow": ["Drama", 5]}}, "filter.genres.allow"),
        ({"mean": {"allow": [0.5]}}, "filter.mean.allow holds 0.5"),
    ],
)
# as the option
def test_filter_that_cannot_be_sent_is_rejected_by_name(filter: Any, message: str) -> None:  # noqa: A002
    with pytest.raises(InvalidArgument, match=message):
        calls.retrieve(VIEWER, filter=filter)


def test_conditions_extended_by_or_are_alternatives() -> None:
    conditions = where("genres").any_of("Horror")
    conditions |= where("year").at_least(1990)
    assert conditions == {"any": [{"genres": {"allow": ["Horror"]}}, {"year": {"ge": 1990}}]}


OPTIONS: dict[str, Any] = {
    "k": 5,
    "pool_size": 50,
    "diversity": 0.5,
    "min_score": 0.0,
    "formula": "score + 0.1 * mean",
    "attributes": ["title"],
    "index": "movies",
    "recall": 0.9,
    "explain": True,
    "offset": 10,
}


@pytest.mark.parametrize("call", [calls.retrieve, calls.recommend])
def test_every_option_equals_its_json(call: Callable[..., Call[Any]]) -> None:
    actual = sent(call(VIEWER, **OPTIONS, crowding={"seller": 3}))
    assert actual == written(call.__name__, **OPTIONS, crowding={"seller": 3})
    assert sent(call(VIEWER)) == written(call.__name__)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"crowding": "seller"},
            r"crowding is 'seller': expected a dict, such as \{'seller': 3\}",
        ),
        ({"crowding": {"seller": "3"}}, "crowding.seller is '3': expected an integer below"),
        ({"crowding": {5: 3}}, "crowding is 5: expected a string"),
        ({"crowding": {"seller": 2**31}}, "crowding.seller is"),
        ({"offset": 1.5}, "offset is 1.5"),
        ({"negative_ids": 5}, "negative_ids"),
        ({"diversity": "0.5"}, "diversity is '0.5': expected a number"),
        ({"recall": True}, "recall is True: expected a number"),
        ({"min_score": [1]}, r"min_score is \[1\]: expected a number"),
        ({"pool_size": 1.5}, "pool_size is 1.5"),
        ({"formula": 5}, "formula is 5"),
    ],
)
@pytest.mark.parametrize("call", [calls.retrieve, calls.recommend])
def test_option_that_cannot_be_sent_is_rejected_by_name(
    call: Callable[..., Call[Any]], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        call(VIEWER, **options)


def merged(**body: Any) -> Any:
    return plain(OPERATIONS["retrieve"].read_json(body, Target("m"), SETTINGS))


def test_several_queries_merged_into_one_are_the_same_as_in_json() -> None:
    requests = [{"vectors": [[1.0, 2.0], [3.0, 4.0]]}, {"vectors": [[5.0, 6.0]]}]
    for vectors in ([[[1, 2], [3, 4]], [[5, 6]]], [np.array([[1, 2], [3, 4]]), np.array([[5, 6]])]):
        actual = sent(calls.retrieve(vectors=vectors))
        expected = merged(requests=requests)
        assert np.reshape(actual.pop("vectors"), (-1, 2)).tolist() == expected.pop("vectors")
        assert actual == expected
    assert sent(calls.retrieve(ids=[[1, 2], [3]])) == merged(
        requests=[{"ids": [1, 2]}, {"ids": [3]}]
    )
    assert sent(calls.retrieve(ids=[["a", "b"]])) == merged(ids=["a", "b"])
