"""Rows of a table in a record of a delta: those of one range of 65,536 that have changed.

    row bytes     of each row (uint32)
    number bytes  of a row number: 2 (uint16)
    zeros         2 bytes
    first         row (int64)
    count         number of rows (int64)
    numbers       row number - first (uint16)
    rows          behind zeros up to a multiple of 64 bytes, each as the table stores it

All is little-endian. The payload, which is the record alone, begins at a multiple of 64 in its
file.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

_HEAD = struct.Struct("<IHHqQ")
_NUMBER = np.dtype("<u2")
_ROW_ALIGNMENT = 64

Bytes: TypeAlias = NDArray[np.uint8]


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
