"""JSON and protobuf of the client, both read by the service's codec: the same request, the same answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rowcast_client import Column, InvalidArgument, calls, json_bodies
from rowcast_client.calls import Call

from service.codec import protobuf
from service.codec.json import dump
from service.codec.operations import OPERATIONS
from service.config import ServiceSettings
from service.engine import requests

TARGET = requests.Target("m")
SETTINGS = ServiceSettings(root=Path.cwd())
INT64 = st.integers(-(2**63), 2**63 - 1)
FLOAT32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
BAG = st.lists(INT64, max_size=4)
WEIGHTED = st.lists(st.tuples(INT64, FLOAT32), max_size=4).map(
    lambda pairs: {"ids": [one for one, _ in pairs], "weights": [weight for _, weight in pairs]}
)
REQUEST = st.fixed_dictionaries({"user": INT64, "name": TEXT, "history": BAG, "genres": WEIGHTED, "dense": FLOAT32})
REQUESTS = st.one_of(REQUEST, st.lists(REQUEST, min_size=2, max_size=4))
IDS = st.one_of(st.lists(INT64, max_size=5), st.lists(TEXT.filter(lambda text: not text[-1:].isdigit()), max_size=5))


def plain(value: Any) -> Any:
    """A request or answer as nested plain values, so that it can be compared."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if hasattr(value, "__dataclass_fields__"):
        return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
    return value


def both_forms(call: Call[Any]) -> tuple[Any, Any]:
    """The engine request that a call becomes as JSON and as a message."""
    operation = OPERATIONS[call.method.lower()]
    body = json_bodies.write_body(call)
    from_json = operation.read_json(json.loads(body), TARGET, SETTINGS)
    message = protobuf.parse(operation.request_class, call.request.SerializeToString())
    return from_json, operation.read_message(message, TARGET, SETTINGS)


def integers(values: Any, other: Any) -> list[Any]:
    """Values from JSON; integers that travelled as strings, since they are all beyond 2^53, as integers again."""
    as_strings = values.dtype == object and other.dtype != object
    return [int(one) if as_strings else one for one in values.tolist()]


def same_columns(left: Any, right: Any) -> bool:
    """Whether columns mean the same; an empty list has no kind, and no offsets mean one value each."""
    assert left.keys() == right.keys()
    for name in left:
        one, other = left[name], right[name]
        assert integers(one.values, other.values) == other.values.tolist(), name
        assert plain(one.offsets) == plain(other.offsets), name
        assert plain(one.weights) == plain(other.weights), name
    return True


@settings(max_examples=60)
@given(REQUESTS, st.integers(1, 50))
def test_retrieve_by_features_as_json_is_the_same_request(features: Any, k: int) -> None:
    from_json, from_message = both_forms(calls.retrieve(features, k=k, attributes=["title"], exact=True, index="i"))
    assert same_columns(from_json.features, from_message.features)
    for field in ("k", "attributes", "exact", "index"):
        assert getattr(from_json, field) == getattr(from_message, field)


@given(IDS.filter(bool))
def test_retrieve_by_ids_as_json_is_the_same_request(ids: Any) -> None:
    from_json, from_message = both_forms(calls.retrieve(ids=ids))
    assert integers(from_json.ids, from_message.ids) == from_message.ids.tolist()


def test_retrieve_by_vectors_as_json_is_the_same_request() -> None:
    from_json, from_message = both_forms(calls.retrieve(vectors=np.arange(6, dtype=np.float32).reshape(2, 3) / 7))
    assert from_json.vectors.shape == (2, 3)
    assert from_json.vectors.reshape(-1).tolist() == from_message.vectors.tolist()


@pytest.mark.parametrize("exclude", [[[1, 2], [3]], [4, 5], [[], [9]], [], ["a", "b"]])
def test_recommend_with_exclusions_as_json_excludes_the_same_of_each_request(exclude: Any) -> None:
    from_json, from_message = both_forms(
        calls.recommend([{"user": 1}, {"user": 2}], k=3, candidates=7, exclude=exclude)
    )

    def of_each(exclusion: requests.Exclusion) -> list[Any]:
        if exclusion.offsets is None:
            return [exclusion.ids.tolist()] * 2
        return [part.tolist() for part in np.split(exclusion.ids, exclusion.offsets[1:-1])]

    assert of_each(from_json.exclude) == of_each(from_message.exclude)
    assert (from_json.k, from_json.candidates) == (from_message.k, from_message.candidates) == (3, 7)


@settings(max_examples=40)
@given(st.lists(st.lists(st.integers(-(2**52), 2**52), min_size=1, max_size=4), min_size=2, max_size=3), st.data())
def test_rank_of_several_contexts_as_json_is_the_same_request(candidates: list[list[int]], data: st.DataObject) -> None:
    contexts = data.draw(st.lists(REQUEST, min_size=len(candidates), max_size=len(candidates)))
    features = [{"year": [one % 100 for one in ids], "genres": [[1, 2]] * len(ids)} for ids in candidates]
    from_json, from_message = both_forms(calls.rank(contexts, candidates, features=features, heads=["click"], k=2))
    assert same_columns(from_json.context, from_message.context)
    assert same_columns(from_json.candidates, from_message.candidates)
    assert from_json.candidate_ids.tolist() == from_message.candidate_ids.tolist()
    assert from_json.offsets.tolist() == from_message.offsets.tolist()
    assert (from_json.heads, from_json.k) == (from_message.heads, from_message.k) == (("click",), 2)


def test_rank_of_candidates_given_by_features_alone_sends_no_ids() -> None:
    from_json, from_message = both_forms(
        calls.rank({"user": 1}, features={"year": [1990, 2000], "dense": [[1, 2], [3, 4]]})
    )
    assert from_json.candidate_ids is None
    assert from_message.candidate_ids is None
    assert same_columns(from_json.candidates, from_message.candidates)
    assert from_json.offsets.tolist() == [0, 2]


def test_rank_of_packed_contexts_is_the_same_as_of_listed_ones() -> None:
    packed = calls.rank({"user": Column([1, 2]), "history": Column([5, 6, 7], [0, 1, 3])}, [[10, 11], [12]])
    listed = calls.rank([{"user": 1, "history": [5]}, {"user": 2, "history": [6, 7]}], [[10, 11], [12]])
    assert packed.request == listed.request


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300])
def test_write_body_of_a_number_that_json_has_not_is_rejected(value: float) -> None:
    with pytest.raises(InvalidArgument, match="NaN or an infinity"):
        json_bodies.write_body(calls.embed({"dense": [value]}))


def answers_equal(call: Call[Any], answer: Any, several: bool) -> None:
    """Asserts that an engine's answer reads the same from JSON and from its message."""
    operation = OPERATIONS[call.method.lower()]
    body = dump(operation.write_json(answer, several))
    from_json = json_bodies.read_body(call.method, body)
    from_message = call.unpack(call.response.FromString(operation.write_message(answer).SerializeToString()))
    assert plain(from_json) == plain(from_message)


ATTRIBUTES = st.fixed_dictionaries(
    {
        "title": st.one_of(st.none(), st.just("Heat"), st.just("")),
        "year": st.one_of(st.none(), st.integers(1900, 2030), st.just(2**60)),
        "mean": st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False)),
        "genres": st.one_of(st.none(), st.lists(TEXT, max_size=3)),
    }
)


@settings(max_examples=60)
@given(st.lists(st.lists(st.tuples(INT64, FLOAT32, ATTRIBUTES), max_size=4), min_size=1, max_size=3), st.booleans())
def test_read_body_of_neighbors_is_that_of_the_message(lists: list[list[Any]], strings: bool) -> None:
    rows = [row for rows in lists for row in rows]
    ids = (
        np.array([f"id {one}" for one, _, _ in rows], object)
        if strings
        else np.array([one for one, _, _ in rows], np.int64)
    )
    scores = np.array([score for _, score, _ in rows], np.float32)
    names = ("title", "year", "mean", "genres") if rows else ()
    neighbors = requests.Neighbors(
        ids,
        scores,
        np.cumsum([0, *map(len, lists)]),
        {name: [attributes[name] for _, _, attributes in rows] for name in names},
    )
    answers_equal(calls.retrieve({"a": 1}), requests.Retrieved("m", 3, neighbors, 100), several=len(lists) > 1)
    answers_equal(
        calls.recommend({"a": 1}), requests.Recommended("m", 3, neighbors, scores[::-1].copy()), several=len(lists) > 1
    )


@pytest.mark.parametrize(
    "ids", [None, np.array([5, 2**60, 7]), np.array([2**60] * 3), np.array(["a", "b", "c"], object)]
)
@pytest.mark.parametrize("offsets", [[0, 3], [0, 1, 3], [0, 0, 3]])
def test_read_body_of_ranked_candidates_is_that_of_the_message(ids: Any, offsets: list[int]) -> None:
    scores = np.array([0.1, 0.2, 0.3], np.float32)
    positions = np.array([0, 1, 0], np.int32)
    answer = requests.Ranked("m", 1, ids, positions, scores, {"click": scores * 2}, np.array(offsets, np.int64))
    answers_equal(calls.rank({"a": 1}, [1, 2, 3]), answer, several=len(offsets) > 2)


@pytest.mark.parametrize("count", [1, 3])
def test_read_body_of_vectors_is_that_of_the_message(count: int) -> None:
    vectors = np.linspace(-1, 1, count * 4, dtype=np.float32).reshape(count, 4)
    answers_equal(calls.embed({"a": 1}), requests.Embedded("m", 1, vectors), several=count > 1)
    found = np.arange(count) % 2 == 0
    answers_equal(calls.lookup("user", [1]), requests.LookedUp("m", 1, "users", vectors, found), several=False)
