"""Framed records: how a delta of rows holds its records, one behind the other.

    zeros    so that the payload begins at a multiple of 64 bytes of the file
    length   of the payload (uint32)
    number   of the record (uint64)
    checksum crc32c of the payload (uint32)
    checksum crc32c of these 16 bytes (uint32)
    payload

All is little-endian. The frame has a checksum of its own, since a damaged length would lead
anywhere.
"""

from __future__ import annotations

import mmap
import struct
from typing import NamedTuple

from bundle.format.checksums import crc32c

ALIGNMENT = 64
"""Payloads begin at multiples of this number of bytes, in the file."""
_CONTENT = struct.Struct("<IQI")
_CONTENT_CHECKSUM = struct.Struct("<I")
_FRAME = struct.Struct("<IQII")


class Frame(NamedTuple):
    """Where a record lies.

    Attributes:
      number: The number of the record.
      begin, end: Where its payload begins and ends in the file.
      checksum: The crc32c of the payload.
    """

    number: int
    begin: int
    end: int
    checksum: int


class Unsound(Exception):
    """Some bytes are no record: a checksum does not match."""


def frame_at(content: bytes | mmap.mmap, end: int) -> Frame | None:
    """Returns the frame behind an offset; None: the content ends within it. The payload is not
    read, and may end behind the content.

    Args:
      content: The file.
      end: The end of the record before.

    Raises:
      Unsound: There is something else.
    """
    begin = end + _filler_bytes(end)
    payload_begin = begin + _FRAME.size
    if payload_begin > len(content):
        return None
    length, number, checksum, frame_checksum = _FRAME.unpack_from(content, begin)
    if (
        content[end:begin].strip(b"\0")
        or crc32c(content[begin : begin + _CONTENT.size]) != frame_checksum
    ):
        raise Unsound
    return Frame(number, payload_begin, payload_begin + length, checksum)


def framed(number: int, payload: bytes, end: int) -> list[bytes]:
    """Returns the bytes of a record as a file has them behind an offset, in parts."""
    content = _CONTENT.pack(len(payload), number, crc32c(payload))
    return [
        bytes(_filler_bytes(end)),
        content,
        _CONTENT_CHECKSUM.pack(crc32c(content)),
        payload,
    ]


def _filler_bytes(end: int) -> int:
    """Returns the number of zeros between the end of a record and the frame of the next one."""
    return -(end + _FRAME.size) % ALIGNMENT
