"""Changes of rows, candidates and contexts: protobuf messages to requests, and results to messages.

What may be sent is the same as in JSON (`changes.py`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.changes.records import Action, Kind
from service.changes.requests import AppliedChanges, ChangeRequest, ChangeResult, Ids
from service.codec import protobuf
from service.codec.changes import ACTIONS, check_offsets, stream_without_offset
from service.codec.message_fields import check_fields
from service.codec.stubs import embedding_service_pb2 as pb
from service.config import ServiceSettings
from service.contract.forms import Columns
from service.contract.limits import at_most
from service.contract.messages import Target
from service.contract.packed import read_ids, unpack
from service.errors import InvalidArgument

_KINDS: dict[int, Kind] = {
    pb.CHANGE_KIND_ROWS: "rows",
    pb.CHANGE_KIND_CANDIDATES: "candidates",
    pb.CHANGE_KIND_CONTEXTS: "contexts",
}
_ACTIONS: dict[int, Action] = {
    pb.CHANGE_ACTION_UPSERT: "upsert",
    pb.CHANGE_ACTION_DELETE: "delete",
    pb.CHANGE_ACTION_ATTRIBUTES: "attributes",
}
_FIELDS: dict[tuple[Kind, Action], frozenset[str]] = {
    ("rows", "upsert"): frozenset({"feature", "vectors"}),
    ("candidates", "upsert"): frozenset({"features", "attributes", "vectors", "expires_s"}),
    ("candidates", "attributes"): frozenset({"attributes"}),
    ("candidates", "delete"): frozenset(),
    ("contexts", "upsert"): frozenset({"features", "attributes"}),
    ("contexts", "attributes"): frozenset({"attributes"}),
    ("contexts", "delete"): frozenset(),
}
"""The fields that only some changes have, by kind and action."""
_OPTIONAL_FIELDS = frozenset().union(*_FIELDS.values())
_FLOAT32 = np.dtype("<f4")
_FLOAT64 = np.dtype("<f8")
_INT64 = np.dtype("<i8")
_BOOL = np.dtype("?")


def read_change_message(body: bytes, settings: ServiceSettings) -> tuple[Target, ChangeRequest]:
    """Reads a serialized ChangeRequest; returns the model and version, and what to change.

    Args:
      body: The message.
      settings: The limits.

    Raises:
      InvalidArgument: A field that this change does not have, packed bytes that are truncated, or
        another number of values than of ids; the message names the field.
      TooLarge: More fields or values than the limits.
    """
    # Before the parser, which builds an object for each field and cannot be interrupted.
    if len(body) > protobuf.SMALL_BYTES:
        fields_max = settings.max_features + settings.max_names + settings.max_values
        check_fields(pb.ChangeRequest.DESCRIPTOR, body, fields_max, settings.max_values)
    message = protobuf.parse(pb.ChangeRequest, body)
    kind = _KINDS.get(message.kind)
    action = _ACTIONS.get(message.action)
    if kind is None or action is None:
        raise _unknown_change(message)
    if action not in ACTIONS[kind]:
        raise InvalidArgument.of_field("action", action, f"upsert for {kind}")

    # A field that would be ignored is an error: the client expects it to have an effect.
    sent_fields = {field.name for field, _ in message.ListFields()}
    unexpected = sorted(sent_fields & _OPTIONAL_FIELDS - _FIELDS[kind, action])
    if unexpected:
        expected = f"a request without it for {action} of {kind}"
        raise InvalidArgument.of_field(unexpected[0], "sent", expected, "was")

    if message.offset and not message.stream:
        raise stream_without_offset(message.stream)
    from_offset = None
    if message.HasField("from_offset"):
        from_offset = _from_zero(message.from_offset, "from_offset")
    offset = _from_zero(message.offset, "offset")
    check_offsets(message.stream, offset, from_offset)

    at_most(settings, "max_features", len(message.features), "features")
    at_most(settings, "max_names", len(message.attributes), "attributes")
    ids = _ids(message)
    request = ChangeRequest(
        kind,
        action,
        ids,
        target=message.target,
        feature=message.feature,
        features=Columns().from_message(message.features, "features"),
        attributes={
            name: _attribute(message.attributes[name], f"attributes.{name}", ids.size)
            for name in message.attributes
        },
        vectors={
            name: _matrix(message.vectors[name], f"vectors.{name}", ids.size)
            for name in message.vectors
        },
        sequences=_sequences(message.sequences),
        expires_s=_expiries(message.expires_s),
        stream=message.stream,
        offset=offset,
        from_offset=from_offset,
    )
    return protobuf.target_of(message.model, None), request


def change_message(result: ChangeResult) -> pb.ChangeResponse:
    """Returns a result as its message."""
    return pb.ChangeResponse(
        model=pb.ModelSpec(name=result.model, version=result.version),
        sequence=result.sequence,
        changed=result.changed,
        outdated=_ids_message(result.outdated),
        unknown=_ids_message(result.unknown),
        outdated_count=result.outdated_count,
        unknown_count=result.unknown_count,
        is_repeated=result.is_repeated,
        stream_offset=result.stream_offset,
    )


def applied_message(applied: AppliedChanges) -> pb.GetChangesResponse:
    """Returns what was changed so far as its message."""
    return pb.GetChangesResponse(
        model=pb.ModelSpec(name=applied.model), sequence=applied.sequence, streams=applied.streams
    )


def _unknown_change(message: pb.ChangeRequest) -> InvalidArgument:
    """Returns the error for a message whose kind or action is missing, or of a newer contract."""
    if message.kind not in _KINDS:
        return InvalidArgument.of_field("kind", message.kind, "rows, candidates or contexts")
    return InvalidArgument.of_field("action", message.action, "upsert, delete or attributes")


def _ids(message: pb.ChangeRequest) -> Ids:
    """Returns the ids of a change, at least one.

    Raises:
      InvalidArgument: There are none.
    """
    ids = read_ids(message.ids, "ids")
    if not ids.size:
        raise InvalidArgument.of_field("ids", "empty", "at least one id")
    return ids


def _matrix(data: bytes, where: str, count: int) -> NDArray[np.float32]:
    """Returns [count, dim] vectors."""
    values = unpack(data, _FLOAT32, where)
    if not values.size or values.size % count:
        expected = f"a vector of equal length for each of {count} ids"
        raise InvalidArgument.of_field(where, f"{values.size} numbers", expected, "has")
    return values.reshape(count, -1)


def _attribute(message: pb.Attribute, where: str, count: int) -> list[Any]:
    """Returns the values of an attribute, None where there is none.

    Args:
      message: The message.
      where: The name of the attribute in an error.
      count: The number of ids, for an attribute of which no id has a value.

    Raises:
      InvalidArgument: A null has no position among the values.
    """
    values: list[Any]
    match message.WhichOneof("values"):
        case "int64s":
            values = unpack(message.int64s, _INT64, f"{where}.int64s").tolist()
        case "float64s":
            values = unpack(message.float64s, _FLOAT64, f"{where}.float64s").tolist()
        case "bools":
            values = unpack(message.bools, _BOOL, f"{where}.bools").tolist()
        case "strings":
            values = list(message.strings.values)
        case "lists":
            values = [list(strings.values) for strings in message.lists.values]
        case _:
            values = [None] * count
    # A list of numbers has no room for null: each such position has some value, which is replaced.
    for position in message.nulls:
        if not 0 <= position < len(values):
            expected = f"a position below {len(values)}"
            raise InvalidArgument.of_field(f"{where}.nulls", position, expected, "has")
        values[position] = None
    return values


def _sequences(data: bytes) -> NDArray[np.int64] | None:
    if not data:
        return None
    sequences = unpack(data, _INT64, "sequences")
    _from_zero(int(sequences.min()), "sequences")
    return sequences


def _expiries(data: bytes) -> NDArray[np.float64] | None:
    if not data:
        return None
    return unpack(data, _FLOAT64, "expires_s")


def _from_zero(value: int, where: str) -> int:
    if value < 0:
        raise InvalidArgument.of_field(where, value, "an integer from 0")
    return value


def _ids_message(ids: tuple[int | str, ...]) -> pb.Ids | None:
    if not ids:
        return None
    if isinstance(ids[0], str):
        return pb.Ids(strings=pb.Strings(values=map(str, ids)))
    return pb.Ids(int64s=np.array(ids, _INT64).tobytes())
