"""Rows as a table stores them, outside its files: the values in the dtype of the table and, behind
those of int8, their scale.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.errors import VectorRejected
from bundle.format.dtypes import SCALE_BYTES, STORED, narrowed, row_bytes, widened

Bytes = NDArray[np.uint8]
Vectors = NDArray[np.float32]


class StoredRows(NamedTuple):
    """Rows that lie anywhere in some memory.

    Attributes:
      memory: [n] uint8, in C order.
      offsets: [m] int64, the offset of each row in the memory.
      row_bytes: The number of bytes of a row, with its scale.
    """

    memory: Bytes
    offsets: NDArray[np.int64]
    row_bytes: int

    def take(self) -> Bytes:
        """Returns the rows, [m, row_bytes] uint8, owned by the caller."""
        if not self.offsets.size:
            return np.empty((0, self.row_bytes), np.uint8)
        # An element of this array begins at each byte.
        count = self.memory.size - self.row_bytes + 1
        elements: NDArray[np.void] = np.ndarray(
            count, f"V{self.row_bytes}", self.memory, strides=(1,)
        )
        return elements[self.offsets].view(np.uint8).reshape(-1, self.row_bytes)


def stored_bytes(dtype: str, dim: int) -> int:
    """Returns the number of bytes of a row of `dim` values of a table's dtype, with its scale."""
    scale_bytes = 0
    if dtype == "int8":
        scale_bytes = SCALE_BYTES
    return row_bytes(dtype, dim) + scale_bytes


def stored_rows(vectors: Vectors, dtype: str) -> StoredRows:
    """Returns vectors as a table stores them, to the bits of an export of them.

    Args:
      vectors: [n, dim] float32.
      dtype: The dtype of the table: float32, bfloat16, float16 or int8.

    Raises:
      VectorRejected: A value is NaN or infinite, or too large for the dtype; names the position of
        its vector.
    """
    vectors = np.asarray(vectors, np.float32)
    count, dim = vectors.shape
    _check_finite(vectors, vectors, "a finite number")
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        values, scales = narrowed(vectors, dtype)
        read = widened(values, dtype, scales)
    _check_finite(read, vectors, f"a number that {dtype} holds")
    stored = np.ascontiguousarray(values).view(np.uint8).reshape(count, row_bytes(dtype, dim))
    if scales is not None:
        stored = np.hstack([stored, scales.view(np.uint8).reshape(count, SCALE_BYTES)])
    size = stored_bytes(dtype, dim)
    return StoredRows(stored.reshape(-1), size * np.arange(count), size)


def vectors_of(stored: Bytes, dtype: str, dim: int) -> Vectors:
    """Returns stored rows as they are read, [m, dim] float32.

    Args:
      stored: [m, row_bytes] uint8.
      dtype: The dtype of the table.
      dim: The number of values of a row.
    """
    value_bytes = row_bytes(dtype, dim)
    scales = None
    if dtype == "int8":
        scales = np.ascontiguousarray(stored[:, value_bytes:]).view("<f4")[:, 0]
        stored = np.ascontiguousarray(stored[:, :value_bytes])
    return widened(stored.view(STORED[dtype]), dtype, scales)


def _check_finite(read: Vectors, vectors: Vectors, expected: str) -> None:
    """Checks that vectors are read as finite numbers.

    Raises:
      VectorRejected: One is not; names the value.
    """
    is_finite = np.isfinite(read)
    if is_finite.all():
        return
    position, column = np.argwhere(~is_finite)[0].tolist()
    value = vectors[position, column]
    raise VectorRejected(position, f"{value:g} in column {column}", expected)
