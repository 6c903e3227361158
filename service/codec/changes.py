"""Changes of rows, candidates and contexts: JSON bodies to requests, and results to JSON values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.changes.records import Action, Kind
from bundle.features.columns import Column
from bundle.tables.id_values import int64_of
from service.changes.requests import ChangeRequest, ChangeResult
from service.codec.json import INTEGER_MAX
from service.contract.columns import check_list, column, fields, flat, numbers, shown
from service.errors import FieldViolation, InvalidArgument

ACTIONS: dict[Kind, tuple[Action, ...]] = {
    "rows": ("upsert",),
    "candidates": ("upsert", "delete", "attributes"),
    "contexts": ("upsert", "delete", "attributes"),
}
TARGETS: dict[Kind, str] = {"rows": "table", "candidates": "corpus", "contexts": "store"}
"""The field of a body that names the target of a change."""
_ITEMS: dict[tuple[Kind, Action], tuple[str, ...]] = {
    ("rows", "upsert"): ("id", "vector", "sequence"),
    ("candidates", "upsert"): (
        "id",
        "features",
        "attributes",
        "vectors",
        "sequence",
        "expires_s",
    ),
    ("candidates", "attributes"): ("id", "attributes", "sequence"),
    ("candidates", "delete"): ("id", "sequence"),
    ("contexts", "upsert"): ("id", "features", "attributes", "sequence"),
    ("contexts", "attributes"): ("id", "attributes", "sequence"),
    ("contexts", "delete"): ("id", "sequence"),
}
_SAME_NAMES = "the same as in other items"
_ALWAYS = ("model", "version", "sequence", "changed")
"""The fields of a result that are written even if they are 0."""


def read_change(kind: Kind, action: Action, body: Any) -> ChangeRequest:
    """Returns the request that a parsed body holds:
    `{"corpus": "movies", "items": [{"id": 1, "features": {...}, "attributes": {...}}]}`.

    Args:
      kind: What is changed.
      action: What is done to it.
      body: The JSON value.

    Raises:
      InvalidArgument: An unknown field, a wrong type, or items that do not fit together.
    """
    target_field = TARGETS[kind]
    body_fields = [target_field, "items", "stream", "offset", "from_offset"]
    if kind == "rows":
        body_fields.insert(1, "feature")
    fields(body, body_fields, "body")

    items = check_list(body.get("items"), "items")
    if not items:
        raise InvalidArgument.of_field("items", "empty", "at least one item")
    for number, item in enumerate(items):
        fields(item, _ITEMS[kind, action], f"items[{number}]")
        if "id" not in item:
            raise InvalidArgument.of_field(f"items[{number}]", "no id", "an id", "has")

    stream = _text(body, "stream")
    if ("offset" in body) != bool(stream):
        raise stream_without_offset(stream)
    from_offset = None
    if "from_offset" in body:
        from_offset = _integer(body["from_offset"], "from_offset")
    offset = 0
    if stream:
        offset = _integer(body["offset"], "offset")
    check_offsets(stream, offset, from_offset)

    # A change of attributes has no features: they would embed the candidate anew.
    columns: dict[str, Column] = {}
    if action == "upsert":
        columns = _columns(items)
    return ChangeRequest(
        kind,
        action,
        ids=flat([item["id"] for item in items], "id"),
        target=_text(body, target_field),
        feature=_text(body, "feature"),
        features=columns,
        attributes=_attributes(items),
        vectors=_vectors(items, kind),
        sequences=_sequences(items),
        expires_s=_expiries(items),
        stream=stream,
        offset=offset,
        from_offset=from_offset,
    )


def check_offsets(stream: str, offset: int, from_offset: int | None) -> None:
    """Checks the offset before a change against that behind it.

    Raises:
      InvalidArgument: The change is of no stream, or ends before it begins.
    """
    if from_offset is None:
        return
    if not stream:
        expected = "a request with stream and offset"
        raise InvalidArgument.of_field("from_offset", from_offset, expected)
    if from_offset >= offset:
        value = f"{from_offset} with an offset of {offset}"
        raise InvalidArgument.of_field("from_offset", value, "a number below offset")


def stream_without_offset(stream: str) -> InvalidArgument:
    """Returns the error for a change with a stream or an offset, and without the other one."""
    message = "stream and offset are accepted only together"
    violation = FieldViolation("stream", "empty", "a stream beside offset")
    if stream:
        violation = FieldViolation("offset", "empty", "an offset beside stream")
    return InvalidArgument(message, violation)


def change_value(result: ChangeResult) -> dict[str, Any]:
    """Returns the JSON value of a result, without fields that are 0, false or empty."""
    content = asdict(result)
    value = {name: field for name, field in content.items() if field or name in _ALWAYS}
    for name in ("outdated", "unknown"):
        if name in value:
            value[name] = [_id_value(key) for key in value[name]]
    return value


def _text(body: dict[str, Any], name: str) -> str:
    text = body.get(name, "")
    if not isinstance(text, str):
        raise InvalidArgument.of_field(name, shown(text), "a string")
    return text


def _columns(items: Sequence[dict[str, Any]]) -> dict[str, Column]:
    """Returns the features of the items, packed by name.

    Raises:
      InvalidArgument: Features are no object, or an item lacks one that others have.
    """
    tables = _tables(items, "features")
    names = _names_in(tables)
    columns = {}
    for name in names:
        # Left out, a feature would have a default, and the candidate another vector.
        for number, table in enumerate(tables):
            if name not in table:
                where = f"items[{number}].features"
                raise InvalidArgument.of_field(where, f"no {shown(name)}", _SAME_NAMES, "has")
        columns[name] = column([table[name] for table in tables], f"features.{name}")
    return columns


def _attributes(items: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Returns the values of the attributes of the items by name.

    Raises:
      InvalidArgument: Attributes are no object, or an item lacks one that others have.
    """
    tables = _tables(items, "attributes")
    names = _names_in(tables)
    # An absent attribute could mean "as it was" or "none". Clients say which, by null.
    for number, table in enumerate(tables):
        missing = [name for name in names if name not in table]
        if missing:
            where = f"items[{number}].attributes"
            hint = "null stands for no value"
            raise InvalidArgument.of_field(
                where, f"no {shown(missing[0])}", _SAME_NAMES, "has", hint
            )
    return {name: [table[name] for table in tables] for name in names}


def _vectors(items: Sequence[dict[str, Any]], kind: Kind) -> dict[str, NDArray[np.float32]]:
    if kind == "rows":
        return {"": _matrix([item.get("vector") for item in items], "vector")}
    tables = _tables(items, "vectors")
    vectors = {}
    for name in _names_in(tables):
        vectors[name] = _matrix([table.get(name) for table in tables], f"vectors.{name}")
    return vectors


def _tables(items: Sequence[dict[str, Any]], field: str) -> list[dict[str, Any]]:
    """Returns a field of each item that is an object; {} where an item lacks it."""
    return [
        _object(item.get(field, {}), f"items[{number}].{field}")
        for number, item in enumerate(items)
    ]


def _names_in(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the names of all tables, in the order in which they occur first."""
    names: dict[str, None] = {}
    for table in tables:
        names |= dict.fromkeys(table)
    return list(names)


def _matrix(vectors: Sequence[Any], where: str) -> NDArray[np.float32]:
    """Returns [m, dim] vectors."""
    for number, vector in enumerate(vectors):
        if not isinstance(vector, list):
            raise InvalidArgument.of_field(
                f"items[{number}].{where}", shown(vector), "a list of numbers"
            )
        if len(vector) != len(vectors[0]):
            expected = f"a list of {len(vectors[0])} as in the first item"
            raise InvalidArgument.of_field(
                f"items[{number}].{where}", f"{len(vector)} numbers", expected, "has"
            )
    whole = numbers([value for vector in vectors for value in vector], where)
    return whole.reshape(len(vectors), -1)


def _sequences(items: Sequence[dict[str, Any]]) -> NDArray[np.int64] | None:
    # All or none: an item without a number could neither be late nor on time.
    numbered = [item for item in items if "sequence" in item]
    if not numbered:
        return None
    if len(numbered) < len(items):
        missing = next(number for number, item in enumerate(items) if "sequence" not in item)
        raise InvalidArgument.of_field(f"items[{missing}]", "no sequence", _SAME_NAMES, "has")
    sequences = [
        _integer(item["sequence"], f"items[{number}].sequence") for number, item in enumerate(items)
    ]
    return np.array(sequences, np.int64)


def _expiries(items: Sequence[dict[str, Any]]) -> NDArray[np.float64] | None:
    if not any("expires_s" in item for item in items):
        return None
    times = []
    for number, item in enumerate(items):
        time_s = item.get("expires_s")
        if time_s is None:
            # The column says "never" by NaN.
            time_s = np.nan
        elif isinstance(time_s, bool) or not isinstance(time_s, int | float):
            raise InvalidArgument.of_field(
                f"items[{number}].expires_s", shown(time_s), "Unix seconds or null"
            )
        times.append(float(time_s))
    return np.array(times, np.float64)


def _integer(value: Any, where: str) -> int:
    """Returns an integer from 0; beyond 2^53 it comes as a decimal string."""
    number = int64_of(value)
    if number is None or number < 0:
        raise InvalidArgument.of_field(where, shown(value), "an integer from 0")
    return number


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidArgument.of_field(where, shown(value), "a JSON object")
    return value


def _id_value(key: int | str) -> int | str:
    """Returns an id as every JSON parser keeps it."""
    if isinstance(key, int) and abs(key) > INTEGER_MAX:
        return str(key)
    return key
