"""Filters and the other options of retrieve and recommend: the same request as the JSON that people
write.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rowcast_client import InvalidArgument, calls, where
from rowcast_client.calls import Call

from service.codec import protobuf
from service.codec.operations import OPERATIONS
from service.config import ServiceSettings
from service.engine.calls import Condition, Crowding, Target
from tests.client.plain import plain

SETTINGS = ServiceSettings(root=Path.cwd())
VIEWER = {"user": 5}


def sent(call: Call[Any]) -> Any:
    """The engine's request that a call becomes, as plain values."""
    operation = OPERATIONS[call.method.lower()]
    message = protobuf.parse(operation.request_class, call.request.SerializeToString())
    return plain(operation.read_message(message, Target("m"), SETTINGS))


def written(call: str, **body: Any) -> Any:
    """The engine's request that a JSON body becomes, as plain values."""
    return plain(OPERATIONS[call].read_json({"features": VIEWER, **body}, Target("m"), SETTINGS))


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
            {"genres": {"allow": ["Drama"], "deny": ["War", "Horror"]}},
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
        VIEWER, filter=where("year").between(1990, 2000.5), crowding=("seller", 3)
    ).request
    message = protobuf.parse(type(request), request.SerializeToString())
    read: Any = OPERATIONS["retrieve"].read_message(message, Target("m"), SETTINGS)
    assert read.filter == {"year": Condition(ge=1990, le=2000.5)}
    assert (type(read.filter["year"].ge), read.crowding) == (int, Crowding("seller", 3))


@pytest.mark.parametrize(
    ("filter", "message"),
    [
        (5, "filter is 5: expected conditions by attribute"),
        ({"year": 5}, "filter.year is 5: expected a dict of allow, deny"),
        ({"year": {"from": 5}}, "filter.year is {'from': 5}: expected a dict of allow"),
        ({5: {"ge": 5}}, "filter.5 is"),
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


def test_conditions_that_cannot_both_be_sent_are_rejected() -> None:
    with pytest.raises(InvalidArgument, match=r"filter\.genres\.allow was given twice"):
        where("genres").any_of("Drama") & where("genres").any_of("Comedy")


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (where("genres").any_of("Horror"), where("genres").any_of("Children")),
        (where("genres").any_of("Horror"), {"year": {"ge": 1990}}),
        ({"year": {"ge": 1990}}, where("genres").any_of("Horror")),
    ],
)
def test_conditions_joined_by_or_are_rejected(left: Any, right: Any) -> None:
    with pytest.raises(InvalidArgument, match="a filter has no OR across conditions"):
        left | right


def test_conditions_extended_by_or_are_rejected() -> None:
    conditions = where("genres").any_of("Horror")
    with pytest.raises(InvalidArgument, match="a filter has no OR across conditions"):
        conditions |= where("year").at_least(1990)


OPTIONS: dict[str, Any] = {
    "k": 5,
    "candidates": 50,
    "diversity": 0.5,
    "min_score": 0.0,
    "formula": "score + 0.1 * mean",
    "attributes": ["title"],
    "index": "movies",
    "recall": 0.9,
    "explain": True,
}


@pytest.mark.parametrize("call", [calls.retrieve, calls.recommend])
def test_every_option_equals_its_json(call: Callable[..., Call[Any]]) -> None:
    given = sent(call(VIEWER, **OPTIONS, crowding=("seller", 3)))
    assert given == written(call.__name__, **OPTIONS, crowding={"attribute": "seller", "max": 3})
    assert sent(call(VIEWER)) == written(call.__name__)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"crowding": "seller"},
            r"crowding is 'seller': expected an attribute and a number, such as \('seller', 3\)",
        ),
        ({"crowding": ("seller", "3")}, "crowding is"),
        ({"crowding": (5, 3)}, "crowding is"),
        ({"crowding": ("seller", 2**31)}, "crowding is"),
        ({"diversity": "0.5"}, "diversity is '0.5': expected a number"),
        ({"recall": True}, "recall is True: expected a number"),
        ({"min_score": [1]}, r"min_score is \[1\]: expected a number"),
        ({"candidates": 1.5}, "candidates is 1.5"),
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
        given = sent(calls.retrieve(vectors=vectors))
        expected = merged(requests=requests)
        assert np.reshape(given.pop("vectors"), (-1, 2)).tolist() == expected.pop("vectors")
        assert given == expected
    assert sent(calls.retrieve(ids=[[1, 2], [3]])) == merged(
        requests=[{"ids": [1, 2]}, {"ids": [3]}]
    )
    assert sent(calls.retrieve(ids=[["a", "b"]])) == merged(ids=["a", "b"])
