"""Protobuf's wire format, decoded by hand: the few messages of a checkpoint need no descriptors.

Descriptors of TensorFlow's own messages must never enter the process-wide descriptor pool: TensorFlow's import fails
when it finds them there.

Source: protobuf.dev, "Encoding".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

import numpy as np

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
VARINT_BYTES_MAX = 10
VARINT_PATTERN = rb"([\x80-\xff]{0,8}[\x00-\x7f])"
"""One of at most nine bytes, which every number but a negative one has, as a group of a pattern."""

Field = tuple[int, int | bytes]
"""Field number, and its value: an unsigned integer (varint, fixed) or bytes (length-delimited)."""


class WireError(Exception):
    """Bytes that are no protobuf message, or not the one that was expected."""


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Reads an unsigned varint of at most 64 bits.

    Returns:
      The value, and where the next byte lies.
    Raises:
      WireError: the bytes end within it, or it is longer than ten bytes or 64 bits.
    """
    value = shift = 0
    try:
        while (byte := data[at]) >= 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
            at += 1
            if shift == 7 * VARINT_BYTES_MAX:
                raise WireError(f"a varint is longer than {VARINT_BYTES_MAX} bytes")
    except IndexError:
        raise WireError("the bytes end within a varint") from None
    value |= byte << shift
    if value >> 64:
        raise WireError("a varint exceeds 64 bits")
    return value, at + 1


def decode_varints(column: Sequence[bytes]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Decodes many varints, each a match of VARINT_PATTERN; [n] int64."""
    digits = np.frombuffer(b"".join(column), np.uint8)
    ends = np.flatnonzero(digits < 0x80)
    starts = np.append(0, ends[:-1] + 1)
    places = np.arange(len(digits)) - np.repeat(starts, ends - starts + 1)
    return np.add.reduceat((digits & 0x7F).astype(np.int64) << 7 * places, starts)


def made(kind: type[Any], *columns: Iterable[Any]) -> list[Any]:
    """Returns named tuples of one kind, given their fields as columns: without a call of Python for each."""
    return list(map(tuple.__new__, repeat(kind), zip(*columns)))  # noqa: B905 (some columns have no end)


def read_fields(data: bytes) -> list[Field]:
    """Reads all fields of one message, in their order.

    Raises:
      WireError: the bytes are no message.
    """
    fields: list[Field] = []
    at, end = 0, len(data)
    while at < end:
        tag = data[at]
        at += 1
        if tag >= 0x80:
            tag, at = read_varint(data, at - 1)
        kind = tag & 7
        if kind in (VARINT, BYTES):
            if at < end and data[at] < 0x80:  # nearly every varint has one byte
                value = data[at]
                at += 1
            else:
                value, at = read_varint(data, at)
            if kind == VARINT:
                fields.append((tag >> 3, value))
                continue
            stop = at + value
            if stop > end:
                raise WireError(f"field {tag >> 3} claims {value} bytes, {end - at} are left")
            fields.append((tag >> 3, data[at:stop]))
            at = stop
        elif kind in (FIXED32, FIXED64):
            width = 4 if kind == FIXED32 else 8
            if width > end - at:
                raise WireError(f"the bytes end within field {tag >> 3}")
            fields.append((tag >> 3, int.from_bytes(data[at : at + width], "little")))
            at += width
        else:
            raise WireError(f"field {tag >> 3} has the wire type {kind}, which is not in use")
    return fields


def as_int(value: int | bytes) -> int:
    """Returns a field's value as a signed 64-bit integer.

    Raises:
      WireError: the field is length-delimited.
    """
    if isinstance(value, bytes):
        raise WireError("bytes where an integer belongs")
    return value - (1 << 64) if value >> 63 else value


def as_bytes(value: int | bytes) -> bytes:
    """Returns a field's value as bytes.

    Raises:
      WireError: the field is an integer.
    """
    if isinstance(value, bytes):
        return value
    raise WireError("an integer where bytes belong")


def as_text(value: int | bytes) -> str:
    """Returns a field's value as text.

    Raises:
      WireError: the field is an integer, or no UTF-8.
    """
    try:
        return as_bytes(value).decode()
    except UnicodeDecodeError as problem:
        raise WireError("text that is no UTF-8") from problem
