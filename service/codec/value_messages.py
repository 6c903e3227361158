"""JSON values to protobuf messages with fields of the same names.

A few messages have another shape than the value: `_FILLERS` names them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from service.codec import columns
from service.codec.protobuf import column_message
from service.codec.stubs import embedding_service_pb2 as pb

_WORD_STARTS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def fill(message: Message, value: Any) -> None:
    """Sets the fields of an empty message.

    Args:
      message: The message.
      value: An object of JSON whose names are those of fields; null leaves a field out. Enumerated
        values are the names in lower case, without their prefix; "" is unspecified.
    """
    filler = _FILLERS.get(message.DESCRIPTOR.full_name)
    if filler is not None:
        filler(message, value)
        return
    # Present even if no field is set, such as an index without parameters.
    message.SetInParent()
    for name, field_value in value.items():
        if field_value is not None:
            _set_field(message, message.DESCRIPTOR.fields_by_name[name], field_value)


def _set_field(message: Message, field: FieldDescriptor, value: Any) -> None:
    """Sets one field of a message.

    Args:
      message: The message.
      field: The field.
      value: The JSON value: an object for a map or a message, a list for a repeated field.
    """
    kind = field.message_type
    if kind is None:
        _set_scalar_field(message, field, value)
        return

    target = getattr(message, field.name)
    # A map is a repeated message of keys and values on the wire, and a dict in Python.
    if kind.GetOptions().map_entry:
        has_messages = kind.fields_by_name["value"].message_type is not None
        for key, entry in value.items():
            if has_messages:
                fill(target[key], entry)
            else:
                target[key] = entry
    elif field.is_repeated:
        for entry in value:
            fill(target.add(), entry)
    else:
        fill(target, value)


def _set_scalar_field(message: Message, field: FieldDescriptor, value: Any) -> None:
    """Sets a field without a message: a number, a text, an enumerated value, or a list of them."""
    enum = field.enum_type
    if field.is_repeated:
        if enum is not None:
            value = [enum_number(enum, text) for text in value]
        getattr(message, field.name).extend(value)
        return
    if enum is not None:
        value = enum_number(enum, value)
    setattr(message, field.name, value)


def enum_number(enum: EnumDescriptor, text: str) -> int:
    """Returns the number of an enumerated value, such as `dot_product`; "" is unspecified."""
    # By the style of protobuf, a value has the name of its type as a prefix: DISTANCE_DOT_PRODUCT.
    prefix = _WORD_STARTS.sub("_", enum.name)
    name = f"{prefix}_{text or 'unspecified'}".upper()
    return int(enum.values_by_name[name].number)


def _fill_id(message: Any, value: int | str) -> None:
    if isinstance(value, str):
        message.string = value
    else:
        message.int64 = value


def _fill_id_rule(message: Any, value: Mapping[str, Any]) -> None:
    # In JSON, `kind` says which rule it is; the message has a field for each kind.
    fields = {name: content for name, content in value.items() if name != "kind"}
    fill(getattr(message, value["kind"]), fields)


def _fill_unknown(message: Any, value: str) -> None:
    # The JSON value is a rule, or "row" and its number: "row 7".
    rule, _, row = value.partition(" ")
    message.SetInParent()
    message.rule = enum_number(pb.UnknownRule.DESCRIPTOR, rule)
    message.row = int(row or 0)


def _fill_column(message: Any, value: Any) -> None:
    message.CopyFrom(column_message(columns.column([value], "default")))


def _fill_timestamp(message: Any, value: str) -> None:
    message.FromJsonString(value)


_FILLERS: dict[str, Callable[[Any, Any], None]] = {
    pb.Id.DESCRIPTOR.full_name: _fill_id,
    pb.IdRule.DESCRIPTOR.full_name: _fill_id_rule,
    pb.Unknown.DESCRIPTOR.full_name: _fill_unknown,
    pb.Column.DESCRIPTOR.full_name: _fill_column,
    "google.protobuf.Timestamp": _fill_timestamp,
}
