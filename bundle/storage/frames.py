"""Framed records: how a change log and a delta of rows hold their records, one behind the other.

    zeros    so that the payload begins at a multiple of 64 bytes of the file
    length   of the payload (uint32)
    sequence number of the record (uint64)
    checksum crc32c of the payload (uint32)
    checksum crc32c of these 16 bytes (uint32)
    payload

All is little-endian. The frame has a checksum of its own, since a damaged length would lead
anywhere.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bundle.errors import FormatError
from bundle.format.checksums import crc32c

RECORD_BYTES_MAX = 64 << 20
"""The maximum number of bytes of a payload in a change log."""
ALIGNMENT = 64
"""Payloads begin at multiples of this number of bytes, in the file."""
_CONTENT = struct.Struct("<IQI")
_CONTENT_CHECKSUM = struct.Struct("<I")
_FRAME = struct.Struct("<IQII")
FRAME_BYTES = _FRAME.size
FRAME_FIELDS = np.dtype(
    [("length", "<u4"), ("sequence", "<u8"), ("checksum", "<u4"), ("frame_checksum", "<u4")]
)
"""A frame, of which many are read at a time."""


class Record(NamedTuple):
    """One record.

    Attributes:
      sequence: The sequence number, which rises from record to record.
      payload: The content.
      offset: The offset of the content in the file, a multiple of 64 bytes.
      checksum: The crc32c of the content.
    """

    sequence: int
    payload: bytes
    offset: int = 0
    checksum: int = 0

    @property
    def end(self) -> int:
        """The offset behind the record in the file."""
        return self.offset + len(self.payload)


class Frame(NamedTuple):
    """Where a record lies.

    Attributes:
      sequence: The sequence number of the record.
      begin, end: Where its payload begins and ends in the content that was searched.
      checksum: The crc32c of the payload.
    """

    sequence: int
    begin: int
    end: int
    checksum: int


class Unsound(Exception):
    """Some bytes are no record: a checksum does not match."""


def frame_at(content: bytes | mmap.mmap, end: int, bytes_max: int = 0xFFFFFFFF) -> Frame | None:
    """Returns the frame behind an offset; None: the content ends within it. The payload is not
    read, and may end behind the content.

    Args:
      content: A part of a file, from a multiple of the alignment on.
      end: The end of the record before, in the content.
      bytes_max: The maximum number of bytes of a payload.

    Raises:
      Unsound: There is something else.
    """
    begin = end + filler_bytes(end)
    payload_begin = begin + FRAME_BYTES
    if payload_begin > len(content):
        return None
    length, sequence, checksum, frame_checksum = _FRAME.unpack_from(content, begin)
    if (
        length > bytes_max
        or content[end:begin].strip(b"\0")
        or crc32c(content[begin : begin + _CONTENT.size]) != frame_checksum
    ):
        raise Unsound
    return Frame(sequence, payload_begin, payload_begin + length, checksum)


def record_at(content: bytes | mmap.mmap, end: int, base: int = 0) -> Record | None:
    """Returns the record of a change log behind an offset; None: the content ends within it.

    Args:
      content: A part of a log.
      end: The end of the record before, in the content.
      base: The offset of the content in the log, a multiple of the alignment.

    Raises:
      Unsound: There is something else.
    """
    frame = frame_at(content, end, RECORD_BYTES_MAX)
    if frame is None or frame.end > len(content):
        return None
    payload = content[frame.begin : frame.end]
    if crc32c(payload) != frame.checksum:
        raise Unsound
    return Record(frame.sequence, payload, base + frame.begin, frame.checksum)


def sound_record(content: bytes | mmap.mmap, end: int) -> Record | None:
    """Returns the record behind an offset; None: there is no sound and whole one."""
    try:
        return record_at(content, end)
    except Unsound:
        return None


def filler_bytes(end: int) -> int:
    """Returns the number of zeros between the end of a record and the frame of the next one."""
    return -(end + FRAME_BYTES) % ALIGNMENT


def laid_out(records: Sequence[Record], end: int) -> tuple[list[bytes], list[Record]]:
    """Returns the bytes of records as a file has them behind an offset, and the records with their
    offsets.
    """
    parts = []
    placed = []
    for sequence, payload, *_ in records:
        checksum = crc32c(payload)
        filler = bytes(filler_bytes(end))
        content = _CONTENT.pack(len(payload), sequence, checksum)
        parts += [filler, content, _CONTENT_CHECKSUM.pack(crc32c(content)), payload]
        offset = end + len(filler) + FRAME_BYTES
        record = Record(sequence, payload, offset, checksum)
        placed.append(record)
        end = record.end
    return parts, placed


def framed(records: Sequence[Record]) -> bytes:
    """Returns records as a log holds them that begins with them."""
    parts, _ = laid_out(records, 0)
    return b"".join(parts)


def read_framed(content: bytes) -> list[Record]:
    """Returns the records that `framed` wrote.

    Raises:
      FormatError: The bytes are cut short, or a checksum does not match.
    """
    records = []
    offset = 0
    while offset < len(content):
        record = sound_record(content, offset)
        if record is None:
            raise FormatError(f"{len(content)} bytes of a change log are damaged at {offset}")
        records.append(record)
        offset = record.end
    return records
