"""Counts the fields and values of a protobuf message, and reads its model, before it is parsed.

The parser builds an object for each field in one call that no other thread can interrupt: 16 MiB of
empty fields take more than a second and 200 MB. A packed number of one byte takes eight.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import islice

import numpy as np
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from service.codec.stubs import embedding_service_pb2 as pb
from service.decoding import check_decoding
from service.errors import TooLarge

_MODEL = 1
"""The number of the field with the model in every request, whatever the protocol."""
_FIELDS_BEFORE_MODEL = 1_024
"""Maximum number of fields in front of that of the model: looking at them takes less than 1 ms.
Libraries write a message in the order of the numbers of its fields, so that usually none is.
"""
_FIELDS_PER_STEP = 16_384
"""Number of fields that are counted at a time, which takes about 10 ms."""
_MODEL_BYTES_MAX = 1_024
"""Maximum size of the field that is read for the name of the model before the message is parsed."""
_LISTED = (pb.Strings.DESCRIPTOR.full_name, pb.Lists.DESCRIPTOR.full_name)
"""Lists of strings, and lists of these, whose only field has the same number."""
_STRING_TAG = bytes([pb.Strings.VALUES_FIELD_NUMBER << 3 | 2])
_TAGS_PER_STRING = 2
"""Number of bytes that look like the tag, per string that is accepted: the byte also occurs as a
length, and in texts.
"""
_VARINT_BITS_MAX = 70
"""Size of a number of ten bytes with seven bits each. The time to read a longer one would grow with
the square of its length, hours for 16 MiB.
"""
_FIXED_BYTES = {
    FieldDescriptor.TYPE_DOUBLE: 8,
    FieldDescriptor.TYPE_FIXED64: 8,
    FieldDescriptor.TYPE_SFIXED64: 8,
    FieldDescriptor.TYPE_FLOAT: 4,
    FieldDescriptor.TYPE_FIXED32: 4,
    FieldDescriptor.TYPE_SFIXED32: 4,
}
"""The sizes of packed numbers by their type; all other types have numbers of variable length."""


def check_fields(descriptor: Descriptor, body: bytes, fields_max: int, values_max: int) -> None:
    """Rejects a message with too many fields or values. Malformed bytes are left to the parser.

    Args:
      descriptor: The type of the message.
      body: The serialized message.
      fields_max: The maximum number of fields, with those of the messages in it.
      values_max: The maximum number of packed numbers and of values in lists of strings, which are
        counted roughly.

    Raises:
      TooLarge: There are more.
    """
    field_count = 0
    value_count = 0
    # A list, not recursion: a hostile message may be nested as deep as it is long.
    unread = [(descriptor, 0, len(body))]
    while unread:
        message, first, end = unread.pop()
        if message.full_name in _LISTED:
            # Millions of strings are common, and looking at each would take a second.
            value_count += body.count(_STRING_TAG, first, end) // _TAGS_PER_STRING
            _check_values(value_count, values_max)
            continue
        messages = _messages_in(message)
        packed_types = _packed_types_in(message)
        for number, start, stop in _fields_of(body, first, end):
            field_count += 1
            if not field_count % _FIELDS_PER_STEP:
                check_decoding()
            if field_count > fields_max:
                size = f"more than {fields_max} fields"
                limits = "enough for max_features and max_names"
                raise TooLarge.of_limit("message", size, fields_max, limits)
            if number in messages:
                unread.append((messages[number], start, stop))
            elif number in packed_types:
                value_count += _packed_count(body, start, stop, packed_types[number])
                _check_values(value_count, values_max)


def _check_values(count: int, limit: int) -> None:
    if count > limit:
        raise TooLarge.of_limit("message", f"more than {limit} values", limit, "max_values")


def _packed_count(body: bytes, start: int, stop: int, field_type: int) -> int:
    """Returns how many numbers of a repeated field lie from `start` to `stop`."""
    if field_type in _FIXED_BYTES:
        return (stop - start) // _FIXED_BYTES[field_type]
    if start == stop:
        return 0
    # The last byte of each number has no eighth bit: it is not negative.
    signed = np.frombuffer(body, np.int8, stop - start, start)
    return int(np.count_nonzero(signed >= 0))


def model_of(descriptor: Descriptor, body: bytes) -> str:
    """Returns the model that a message names, wherever the field stands among the first ones;
    nothing else is read.

    Args:
      descriptor: The type of the message.
      body: The serialized message.

    Returns:
      The name; "" if too many fields come first, or the message names no model.
    """
    first_fields = islice(_fields_of(body, 0, len(body)), _FIELDS_BEFORE_MODEL + 1)
    no_field = (_MODEL, 0, 0)
    _, start, end = next((field for field in first_fields if field[0] == _MODEL), no_field)
    if end - start > _MODEL_BYTES_MAX:
        return ""
    field = body[start:end]
    # The field is the name itself, or a message of some protocol that begins with the name.
    if descriptor.fields_by_number[_MODEL].message_type is None:
        return field.decode(errors="replace")
    try:
        return str(pb.ModelSpec.FromString(field).name)
    except DecodeError:
        # The parser of the message reports it.
        return ""


def _fields_of(body: bytes, position: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yields number, start and end of each field of a message, as far as it is well-formed.

    Args:
      body: The bytes that contain the message.
      position: The position of its first byte.
      end: The position behind its last byte.
    """
    try:
        while position < end:
            tag, start = _varint(body, position)
            # The lower three bits are the wire type: how the length of the field is found.
            match tag & 7:
                case 2:  # a length, and as many bytes
                    size, start = _varint(body, start)
                    position = start + size
                case 0:  # a number of variable length
                    _, position = _varint(body, start)
                case 1:
                    position = start + 8
                case 5:
                    position = start + 4
                case _:  # the begin or the end of a group, which has no content of its own
                    position = start
            # A length may point behind the message.
            yield tag >> 3, start, min(position, end)
    except IndexError:
        return


@cache
def _packed_types_in(message: Descriptor) -> dict[int, int]:
    """Returns the types of the fields that may be packed numbers, by field number."""
    return {field.number: field.type for field in message.fields if field.is_packed}


@cache
def _messages_in(message: Descriptor) -> dict[int, Descriptor]:
    """Returns the types of the fields that are messages, by field number."""
    return {
        field.number: field.message_type
        for field in message.fields
        if field.message_type is not None
    }


def _varint(body: bytes, position: int) -> tuple[int, int]:
    """Returns the number at a position, and the position behind it.

    Raises:
      IndexError: The body ends before the number does, or no number is as long.
    """
    # Seven bits per byte, the lowest first. The eighth bit says that another byte follows.
    value = 0
    for shift in range(0, _VARINT_BITS_MAX, 7):
        byte = body[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise IndexError
