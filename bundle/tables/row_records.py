"""Records of a delta: the changed rows of one range of 65,536, framed, one behind the other.

A frame, in front of each payload:

    zeros    so that the payload begins at a multiple of 64 bytes of the file
    length   of the payload (uint32)
    number   of the record (uint64)
    checksum crc32c of the payload (uint32)
    checksum crc32c of these 16 bytes (uint32)

The frame has a checksum of its own, since a damaged length would lead anywhere. The payload:

    row bytes     of each row (uint32)
    number bytes  of a row number: 2 (uint16)
    zeros         2 bytes
    first         row (int64)
    count         number of rows (int64)
    numbers       row number - first (uint16)
    rows          behind zeros up to a multiple of 64 bytes, each as the table stores it

All is little-endian.
"""

from __future__ import annotations

import mmap
import struct
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bundle.format.checksums import crc32c

ALIGNMENT = 64
"""Payloads begin at multiples of this number of bytes, in the file."""
_CONTENT = struct.Struct("<IQI")
_CONTENT_CHECKSUM = struct.Struct("<I")
_FRAME = struct.Struct("<IQII")
_HEAD = struct.Struct("<IHHqQ")
_NUMBER = np.dtype("<u2")
_ROW_ALIGNMENT = 64

Bytes: TypeAlias = NDArray[np.uint8]


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


class RowRecord(NamedTuple):
    """Rows, and where their bytes lie.

    Attributes:
      first: The number that the others are counted from.
      numbers: [n] uint16, the numbers of the rows less `first`, in the payload.
      begin: The offset of the first row in the payload; the others follow it.
      row_bytes: The number of bytes of a row.
    """

    first: int
    numbers: NDArray[np.uint16]
    begin: int
    row_bytes: int

    @property
    def rows(self) -> NDArray[np.int64]:
        """[n] int64, the numbers of the rows."""
        return self.numbers.astype(np.int64) + self.first


def encode(rows: NDArray[np.int64], stored: Bytes) -> bytes:
    """Returns the record of some rows.

    Args:
      rows: [n] int64, the numbers of the rows, ascending, of one range; at least one.
      stored: [n, row_bytes] uint8, the rows as they are stored.
    """
    first = int(rows[0])
    record = _HEAD.pack(stored.shape[1], _NUMBER.itemsize, 0, first, rows.size)
    record += (rows - first).astype(_NUMBER).tobytes()
    record += bytes(-len(record) % _ROW_ALIGNMENT)
    return record + np.ascontiguousarray(stored).tobytes()


def decode(payload: memoryview) -> RowRecord:
    """Returns the rows of a record.

    Raises:
      struct.error, ValueError: The payload is no such record.
    """
    row_bytes, number_bytes, zeros, first, count = _HEAD.unpack_from(payload)
    if number_bytes != _NUMBER.itemsize or zeros:
        raise ValueError(f"row numbers of {number_bytes} bytes, and {zeros} behind them")
    # A damaged count may be larger than NumPy takes.
    if count > len(payload):
        raise ValueError(f"{len(payload)} bytes hold {count} rows")
    numbers = np.frombuffer(payload, _NUMBER, count, _HEAD.size)
    begin = _HEAD.size + numbers.nbytes
    begin += -begin % _ROW_ALIGNMENT
    if begin + row_bytes * count != len(payload):
        raise ValueError(f"{len(payload)} bytes hold {count} rows")
    return RowRecord(first, numbers, begin, row_bytes)
