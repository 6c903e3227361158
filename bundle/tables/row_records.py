"""Rows of a table in a record: of a change in the log, and of a sorted range in a delta.

    row bytes     of each row (uint32)
    number bytes  of a row number: 2, 4 or 8 (uint16)
    columns       keys (1), sequences (2) or both (3) (uint16)
    first         row (int64)
    count         number of rows (int64)
    numbers       row number - first (uint16, uint32 or uint64), zeros up to a multiple of 8 bytes
    keys          int64, of tables that give keys rows
    sequences     int64
    rows          behind zeros up to a multiple of 64 bytes, each as the table stores it: the values
                  in its dtype and, in a change of int8 rows, the scale

All is little-endian. The record begins at a multiple of 8 bytes in its payload, and the payload at
a multiple of 64 in its file.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

KIND = struct.Struct("<IHH")
"""What records of the same kind of rows begin with."""
_RANGE = struct.Struct("<qQ")
_COLUMN_ALIGNMENT = 8
_ROW_ALIGNMENT = 64
KEY = "key"
SEQUENCE = "sequence"
_FLAGS = {KEY: 1, SEQUENCE: 2}

Bytes: TypeAlias = NDArray[np.uint8]


class RowRecord(NamedTuple):
    """Rows, and where their bytes lie.

    Attributes:
      first: The number that the others are counted from.
      numbers: [n] uint16, uint32 or uint64, the numbers of the rows less `first`, in the payload.
      columns: [n] int64 each: the keys and the sequences, where there are some.
      begin: The offset of the first row in the payload; the others follow it.
      row_bytes: The number of bytes of a row.
    """

    first: int
    numbers: NDArray[np.unsignedinteger[Any]]
    columns: Mapping[str, NDArray[np.int64]]
    begin: int
    row_bytes: int

    @property
    def rows(self) -> NDArray[np.int64]:
        """[n] int64, the numbers of the rows."""
        return self.numbers.astype(np.int64) + self.first


def encode(
    rows: NDArray[np.int64],
    stored: Bytes,
    columns: Mapping[str, NDArray[np.int64]],
    begin: int = 0,
) -> tuple[bytes, bytes]:
    """Returns the bytes of rows: the kind, and what is behind it.

    Args:
      rows: [n] int64, the numbers of the rows, at least 0.
      stored: [n, row_bytes] uint8, the rows as they are stored.
      columns: [n] int64 each, by the names KEY and SEQUENCE.
      begin: The offset of the record in its payload, a multiple of 8.
    """
    first = 0
    if rows.size:
        first = int(rows.min())
    numbers = rows - first
    number_type = np.min_scalar_type(numbers.max(initial=0))
    if number_type.itemsize == 1:
        number_type = np.dtype(np.uint16)
    content = _RANGE.pack(first, rows.size) + numbers.astype(number_type).tobytes()
    content += bytes(-len(content) % _COLUMN_ALIGNMENT)
    flags = 0
    for name, flag in _FLAGS.items():
        if name in columns:
            flags |= flag
            content += columns[name].astype("<i8").tobytes()
    kind = KIND.pack(stored.shape[1], number_type.itemsize, flags)
    filler = bytes(-(begin + len(kind) + len(content)) % _ROW_ALIGNMENT)
    return kind, b"".join([content, filler, np.ascontiguousarray(stored).data])


class RowRecords:
    """Reads records of one kind.

    Attributes:
      columns: The names of the columns beside the numbers.
      row_bytes: The number of bytes of a row.
    """

    def __init__(self, kind: bytes) -> None:
        """Takes the bytes that the records begin with.

        Raises:
          struct.error, ValueError: They are of no such record.
        """
        self.row_bytes, number_bytes, flags = KIND.unpack(kind)
        if number_bytes not in {2, 4, 8} or flags > sum(_FLAGS.values()):
            raise ValueError(f"row numbers of {number_bytes} bytes, columns {flags}")
        self._number_type = np.dtype(f"<u{number_bytes}")
        self.columns = [name for name, flag in _FLAGS.items() if flags & flag]

    def count(self, payload: bytes | memoryview, position: int) -> int:
        """Returns the number of rows; arguments and errors as of `read`."""
        _, count = _RANGE.unpack_from(payload, position)
        return int(count)

    def read(self, payload: bytes | memoryview, position: int) -> RowRecord:
        """Returns the rows of a record.

        Args:
          payload: The payload, of which the record is the last part.
          position: The offset behind the kind.

        Raises:
          struct.error, ValueError: The payload is no such record.
        """
        first, count = _RANGE.unpack_from(payload, position)
        position += _RANGE.size
        # A damaged count may be larger than NumPy takes.
        if count > len(payload):
            raise ValueError(f"{len(payload)} bytes hold {count} rows")
        numbers = np.frombuffer(payload, self._number_type, count, position)
        position += numbers.nbytes
        position += -position % _COLUMN_ALIGNMENT
        columns = {}
        for name in self.columns:
            columns[name] = np.frombuffer(payload, "<i8", count, position)
            position += 8 * count
        position += -position % _ROW_ALIGNMENT
        if position + self.row_bytes * count != len(payload):
            raise ValueError(f"{len(payload)} bytes hold {count} rows")
        return RowRecord(first, numbers, columns, position, self.row_bytes)
