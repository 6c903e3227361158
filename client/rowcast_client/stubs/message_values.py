"""Messages that describe something, as the plain values of JSON: objects with the fields of the
message. `scripts/generate_stubs` copies this module to the client.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

_PACKAGE = "rowcast.embedding.v1"
_WORD_STARTS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_DTYPES = {"int64s": "<i8", "int32s": "<i4", "float32s": "<f4"}
NULL_WORDS = frozenset({f"{_PACKAGE}.InputLength.keep"})
"""Enumerated fields that are null where they are unspecified, not ""."""


def word_of(enum: EnumDescriptor, number: int) -> str:
    """Returns an enumerated value in lower case, without its prefix; "" for unspecified, and the
    number of a value that only newer services have.
    """
    value = enum.values_by_number.get(number)
    if value is None:
        return str(number)
    word: str = value.name.removeprefix(_prefix(enum)).lower()
    if word == "unspecified":
        return ""
    return word


def number_of(enum: EnumDescriptor, word: str) -> Any:
    """Returns the number of an enumerated value, such as `dot_product`; "" is unspecified."""
    return enum.values_by_name[f"{_prefix(enum)}{word or 'unspecified'}".upper()].number


def _prefix(enum: EnumDescriptor) -> str:
    # By the style of protobuf, a value has the name of its type as a prefix: DISTANCE_DOT_PRODUCT.
    return f"{_WORD_STARTS.sub('_', enum.name)}_".upper()


def value_of(message: Any, records: Mapping[str, Callable[..., Any]] | None = None) -> Any:
    """Returns a message as a plain value.

    Args:
      message: The message.
      records: What is made of the fields of some messages instead, by the name of the message.

    Returns:
      A dict of all fields, in the order of the contract; a field that is absent is None. A few
      messages are other values, such as an Id: `_VALUES` names them.
    """
    descriptor = message.DESCRIPTOR
    special = _VALUES.get(descriptor.full_name)
    if special is not None:
        return special(message)
    fields: dict[str, Any] = {}
    for field in descriptor.fields:
        value = getattr(message, field.name)
        # Name and version of the model stand side by side, not in an object.
        if field.message_type is not None and field.message_type.name == "ModelSpec":
            fields |= {"model": value.name, "version": value.version}
        elif field.has_presence and not message.HasField(field.name):
            fields[field.name] = None
        # Maps, before repeated fields: protobuf has maps as repeated entries, too.
        elif hasattr(value, "items"):
            fields[field.name] = {
                key: _plain(field, entry, records) for key, entry in value.items()
            }
        elif field.is_repeated:
            fields[field.name] = [_plain(field, entry, records) for entry in value]
        else:
            fields[field.name] = _plain(field, value, records)
    record = (records or {}).get(descriptor.name)
    if record is not None:
        return record(**fields)
    return fields


def _plain(
    field: FieldDescriptor, value: Any, records: Mapping[str, Callable[..., Any]] | None
) -> Any:
    if isinstance(value, Message):
        return value_of(value, records)
    if field.enum_type is None:
        return value
    word = word_of(field.enum_type, value)
    if not word and field.full_name in NULL_WORDS:
        return None
    return word


def _id(message: Any) -> int | str:
    value: int | str = getattr(message, message.WhichOneof("kind"))
    return value


def _id_rule(message: Any) -> dict[str, Any]:
    """Returns a rule with its kind."""
    kind = message.WhichOneof("kind")
    return {"kind": kind, **value_of(getattr(message, kind))}


def _unknown(message: Any) -> str:
    rule = word_of(message.DESCRIPTOR.fields_by_name["rule"].enum_type, message.rule)
    if rule == "row":
        return f"{rule} {message.row}"
    return rule


def _column(message: Any) -> Any:
    """Returns the value of the one example of a column, as a request writes it."""
    kind = message.WhichOneof("values")
    if kind == "strings":
        values = list(message.strings.values)
    else:
        values = _numbers(getattr(message, kind), _DTYPES[kind])
    if message.weights:
        return {"ids": values, "weights": _numbers(message.weights, "<f4")}
    if message.offsets:
        return values
    return values[0]


def _numbers(packed: bytes, dtype: str) -> list[Any]:
    numbers: list[Any] = np.frombuffer(packed, dtype).tolist()
    if dtype == "<f4":
        # The shortest number that is the same float32: 0.1, not 0.10000000149011612.
        return [float(str(np.float32(number))) for number in numbers]
    return numbers


def _timestamp(message: Any) -> str:
    text: str = message.ToJsonString()
    return text


_VALUES: dict[str, Callable[[Any], Any]] = {
    f"{_PACKAGE}.Id": _id,
    f"{_PACKAGE}.IdRule": _id_rule,
    f"{_PACKAGE}.Unknown": _unknown,
    f"{_PACKAGE}.Column": _column,
    "google.protobuf.Timestamp": _timestamp,
}
"""Messages whose value is no object of their fields."""
