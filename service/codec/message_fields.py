"""Counts the fields of a protobuf message, and reads its model, before it is parsed.

The parser builds an object for each field in one call that no other thread can interrupt: 16 MiB of
empty fields take more than a second and 200 MB.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError

from service.codec.stubs import embedding_service_pb2 as pb
from service.errors import TooLarge

_MODEL = 1
"""The number of the field with the model in every request of the contract."""
_MODEL_BYTES_MAX = 1_024
"""Maximum size of the field that is read for the name of the model before the message is parsed."""
_STRINGS = pb.Strings.DESCRIPTOR.full_name
_STRING_TAG = bytes([pb.Strings.VALUES_FIELD_NUMBER << 3 | 2])
_TAGS_PER_STRING = 2
"""Number of bytes that look like the tag, per string that is accepted: the byte also occurs as a
length, and in texts.
"""
_VARINT_BITS_MAX = 70
"""Size of a number of ten bytes with seven bits each. The time to read a longer one would grow with
the square of its length, hours for 16 MiB.
"""


def check_fields(descriptor: Descriptor, body: bytes, fields_max: int, strings_max: int) -> None:
    """Rejects a message with too many fields. Malformed bytes are left to the parser.

    Args:
      descriptor: The type of the message.
      body: The serialized message.
      fields_max: The maximum number of fields, with those of the messages in it.
      strings_max: The maximum number of values in lists of strings, which are counted roughly.

    Raises:
      TooLarge: There are more.
    """
    field_count = 0
    string_count = 0
    # A list, not recursion: a hostile message may be nested as deep as it is long.
    unread = [(descriptor, 0, len(body))]
    while unread:
        message, first, end = unread.pop()
        if message.full_name == _STRINGS:
            # Millions of strings are common, and looking at each would take a second.
            string_count += body.count(_STRING_TAG, first, end)
            if string_count > _TAGS_PER_STRING * strings_max:
                size = f"more than {strings_max} strings"
                raise TooLarge.of_limit("message", size, strings_max, "max_values")
            continue
        messages = _messages_in(message)
        for number, start, stop in _fields_of(body, first, end):
            field_count += 1
            if field_count > fields_max:
                size = f"more than {fields_max} fields"
                limits = "enough for max_features and max_names"
                raise TooLarge.of_limit("message", size, fields_max, limits)
            if number in messages:
                unread.append((messages[number], start, stop))


def model_of(descriptor: Descriptor, body: bytes) -> str:
    """Returns the model that a message names in its first field, where libraries write it; nothing
    else is read.

    Args:
      descriptor: The type of the message.
      body: The serialized message.

    Returns:
      The name; "" if another field comes first, or the message names no model.
    """
    field = descriptor.fields_by_number.get(_MODEL)
    if field is None or field.message_type is None:
        return ""
    # TensorFlow Serving's ModelSpec has the name in the same field.
    if field.message_type.name != pb.ModelSpec.DESCRIPTOR.name:
        return ""
    try:
        return str(pb.ModelSpec.FromString(_first_field(body)).name)
    except DecodeError:
        # The parser of the message reports it.
        return ""


def model_name_of(body: bytes) -> str:
    """Returns the model that a message names in its first field, as `model_of` does, where the
    field is the name itself.
    """
    return _first_field(body).decode(errors="replace")


def _first_field(body: bytes) -> bytes:
    """Returns the field of the model; b"": another field comes first, or it is no name."""
    number, start, end = next(_fields_of(body, 0, len(body)), (0, 0, 0))
    if number != _MODEL or end - start > _MODEL_BYTES_MAX:
        return b""
    return body[start:end]


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
