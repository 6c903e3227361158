"""Values as JSON has them -> protobuf messages with fields of the same names.

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
    message.SetInParent()
    for name, item in value.items():
        if item is not None:
            _set_field(message, message.DESCRIPTOR.fields_by_name[name], item)


def _set_field(message: Message, field: FieldDescriptor, item: Any) -> None:
    target = getattr(message, field.name)
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        for key, each in item.items():
            if kind.fields_by_name["value"].message_type is None:
                target[key] = each
            else:
                fill(target[key], each)
    elif kind is not None and field.is_repeated:
        for each in item:
            fill(target.add(), each)
    elif kind is not None:
        fill(target, item)
    else:
        enum = field.enum_type
        if field.is_repeated:
            target.extend(item if enum is None else [enum_number(enum, text) for text in item])
        else:
            setattr(message, field.name, item if enum is None else enum_number(enum, item))


def enum_number(enum: EnumDescriptor, text: str) -> int:
    """Returns the number of an enumerated value, such as `dot_product`; "" is unspecified."""
    prefix = _WORD_STARTS.sub("_", enum.name)
    name = f"{prefix}_{text or 'unspecified'}".upper()
    return int(enum.values_by_name[name].number)


def _fill_id(message: Any, value: int | str) -> None:
    if isinstance(value, str):
        message.string = value
    else:
        message.int64 = value


def _fill_id_rule(message: Any, value: Mapping[str, Any]) -> None:
    fields = {name: item for name, item in value.items() if name != "kind"}
    fill(getattr(message, value["kind"]), fields)


def _fill_unknown(message: Any, value: str) -> None:
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
