"""Values of other types, made for each field of each call from the declaration of the calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from service.codec.stubs import embedding_service_pb2 as pb
from tests.units.service.cases import REQUESTS, Case, rank, user

BODIES: dict[str, dict[str, Any]] = {
    "retrieve": user(),
    "rank": rank(),
    "recommend": user(),
    "embed": {"tower": "query", "features": {"user": 5}},
    "lookup": {"feature": "user", "ids": [1]},
}
"""A request of each call that is accepted."""
NAN = float("nan")
_IDS: list[Any] = [5, "x", {"a": 1}, [1.5], [True], [None], [2**63], [1, "a"]]
_COLUMNS: list[Any] = [5, "x", [1], {"user": None}, {"user": True}, {"user": {"weights": 3}}]
BY_TYPE: dict[int, list[Any]] = {
    FieldDescriptor.TYPE_INT32: ["3", 1.5, True, None, [1], {}, -(2**70), -1, 2**31],
    FieldDescriptor.TYPE_DOUBLE: ["0.5", True, None, [0.5], NAN, float("inf")],
    FieldDescriptor.TYPE_BOOL: ["yes", 1, None, [True]],
    FieldDescriptor.TYPE_STRING: [5, True, None, ["x"], "\ud800"],
    FieldDescriptor.TYPE_ENUM: ["ignore", "", True, None, ["skip"]],
}
BY_MESSAGE: dict[str, list[Any]] = {
    "Ids": _IDS,
    "Column": _IDS,
    "Filter": [5, "x", ["year"], {"year": 5}, {"year": {"from": 5}}],
    "Condition": [5, "x", [3], {"from": 5}],
    "Circle": [5, "x", {"latitude": 1, "longitude": 2}, {"latitud": 1}],
    "Number": ["5", True, None, [5], NAN],
    "Source": [5, "x", {"indx": ""}, {}],
}
BY_FIELD: dict[str, list[Any]] = {
    "vectors": [5, "x", [], [5], [[]], [["a"]], [[True]], [[[[1.0]]]], [[NAN] * 8], [[1e39] * 8]],
    "context": _COLUMNS,
    "features": _COLUMNS,
    "candidate_features": [5, "x", [1], {"year": 5}, {"year": [None]}, {"year": ["x"]}],
    "context_id": [{"a": 1}, [1.5], [True], [None], [2**63]],
    "crowding": [
        5,
        "x",
        ["studio"],
        {"studio": 1.5},
        {"studio": "1"},
        {"studio": -1},
        {"studio": 2**31},
    ],
}
_NESTED: dict[str, Any] = {
    "Circle": {"latitude": 1, "longitude": 2, "radius_m": 3},
    "Source": {"index": ""},
}
NO_OBJECTS: list[Any] = [[], 5, None, "x"]
NO_REQUESTS: list[Any] = [5, "x", [], [5], [{"zzz": 1}], [{"k": 1}], {}]
NO_FIELDS = {"model", "offsets", "query_offsets", "exclude_offsets", "negative_offsets"}
"""Fields that JSON has in other forms: the URL, and lists of lists."""
_JSON_NAMES = {"context_ids": "context_id"}
_QUERIES = ("vectors", "ids")
"""What a retrieval has instead of a context."""


def bad_values() -> Iterator[Case]:
    """Yields requests each of which has one value of another type; `name` is the field's path."""
    for call, message in REQUESTS.items():
        for path, wrong in _wrong(message.DESCRIPTOR):
            for body, value in wrong:
                base = BODIES[call]
                if call == "retrieve" and path in _QUERIES:
                    base = {}
                yield Case(call, f"{path}: {value!r:.60}", base | body, field=path)
        yield Case(call, "an unknown field", BODIES[call] | {"zzz": 1}, field="body")
        for no_object in NO_OBJECTS:
            yield Case(call, f"a body that is {no_object!r}", no_object, field="body")
        if call == "lookup":
            continue
        for requests in NO_REQUESTS:
            options = {name: BODIES[call][name] for name in BODIES[call] if name == "tower"}
            yield Case(
                call, f"requests {requests!r}", options | {"requests": requests}, field="requests"
            )


def is_for_clients(case: Case) -> bool:
    """Whether the client rejects a value, too: in Python, None leaves an argument out."""
    is_python = case.name.endswith(": None")
    return isinstance(case.json, dict) and "requests" not in case.json and not is_python


def _wrong(message: Descriptor) -> Iterator[tuple[str, list[tuple[dict[str, Any], Any]]]]:
    """Yields the path of each field, and bodies in which it has another type."""
    for field in message.fields:
        if field.name in NO_FIELDS:
            continue
        name = _JSON_NAMES.get(field.name, field.name)
        values = _values(field, name)
        if field.is_repeated and name not in BY_FIELD:
            values = [5, "x", {"a": 1}, *[[value] for value in values]]
        yield name, [({name: value}, value) for value in values]
        if field.message_type is pb.Filter.DESCRIPTOR:
            for path, filters in _wrong_filters():
                yield path, [({"filter": value}, value) for value in filters]
        elif field.message_type is pb.Source.DESCRIPTOR:
            for path, wrong in _wrong(field.message_type):
                sources = [_NESTED["Source"] | source for source, _ in wrong]
                yield f"sources[0].{path}", [({"sources": [it]}, it) for it in sources]


def _wrong_filters() -> Iterator[tuple[str, list[Any]]]:
    for path, wrong in _wrong(pb.Condition.DESCRIPTOR):
        yield f"filter.year.{path}", [{"year": condition} for condition, _ in wrong]
    for path, wrong in _wrong(pb.Circle.DESCRIPTOR):
        circles = [_NESTED["Circle"] | circle for circle, _ in wrong]
        yield f"filter.near[0].{path}", [{"near": [circle]} for circle in circles]
    for group in ("all", "any", "none"):
        wrong_groups = [5, "x", [], [5], [{"year": 5}], [{group: []}]]
        yield f"filter.{group}", [{group: value} for value in wrong_groups]
    yield "filter.near", [{"near": value} for value in (5, [], [5])]


def _values(field: FieldDescriptor, name: str) -> list[Any]:
    if name in BY_FIELD:
        return BY_FIELD[name]
    if field.message_type is not None:
        return BY_MESSAGE[field.message_type.name]
    return BY_TYPE[field.type]
