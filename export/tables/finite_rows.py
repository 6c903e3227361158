"""Rows that hold NaN or an infinity, found while they are copied.

One such row makes every response that reads it an error, and mostly means that training diverged.
The bytes are in the core's cache anyway, so that a scan costs a few percent of a copy.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.format.manifest import NonFiniteRows
from export.checkpoint.variables import NUMPY_DTYPES
from export.errors import NotConvertible

Bytes = NDArray[np.uint8]

_EXPONENTS = {"float16": np.uint16(0x7C00), "bfloat16": np.uint16(0x7F80)}
"""The bits that are all set in NaN and infinities. NumPy's own test of 16-bit floats is slow."""


class FiniteScan:
    """Looks for rows that are not finite among those of one task."""

    def __init__(self, dtype: str, dim: int) -> None:
        """Prepares the scan of the rows of one task.

        Args:
          dtype: The dtype of the values; integers are always finite.
          dim: The number of values in a row.
        """
        self._dtype = dtype
        self._dim = dim
        self._is_float = dtype in _EXPONENTS or NUMPY_DTYPES[dtype].kind == "f"
        self._row_count = 0
        self._first_row: int | None = None
        self._last_row: int | None = None

    def scan(self, data: Bytes, first_byte: int) -> NDArray[np.int64]:
        """Looks for values that are not finite.

        Args:
          data: Whole values in one piece, whatever the shape.
          first_byte: The position of the first byte in the rows of the table, one after another.

        Returns:
          [m] the rows of the table that hold a value that is not finite, ascending. A row whose
          values come in two neighboring pieces counts once.
        """
        if not self._is_float:
            return np.empty(0, np.int64)
        is_finite = _is_finite(data.reshape(-1), self._dtype)
        if is_finite.all():
            return np.empty(0, np.int64)
        first_value = first_byte // NUMPY_DTYPES[self._dtype].itemsize
        rows = np.unique((first_value + np.flatnonzero(~is_finite)) // self._dim)
        first_found = int(rows[0])
        self._row_count += rows.size - (first_found == self._last_row)
        if self._first_row is None:
            self._first_row = first_found
        self._first_row = min(self._first_row, first_found)
        self._last_row = int(rows[-1])
        return rows

    @property
    def non_finite(self) -> NonFiniteRows | None:
        """The rows so far that are not finite; None if all are finite."""
        if self._first_row is None:
            return None
        return NonFiniteRows(rows=self._row_count, first_row=self._first_row)


def joined(parts: Iterable[NonFiniteRows | None]) -> NonFiniteRows | None:
    """Returns the rows that several tasks found in a table; None if all are finite."""
    ranges = [part for part in parts if part is not None]
    if not ranges:
        return None
    return NonFiniteRows(
        rows=sum(part.rows or 0 for part in ranges),
        first_row=min(part.first_row or 0 for part in ranges),
    )


def check_finite(
    table: str, non_finite: NonFiniteRows | None, *, allowed: bool, converted: bool = False
) -> None:
    """Rejects a table with rows that are not finite.

    Args:
      table: The name of the table.
      non_finite: The rows that are not finite; None if all are.
      allowed: Whether the user allows such rows.
      converted: Whether the rows were converted, so that they cannot be allowed.

    Raises:
      NotConvertible: The table has such rows, and they are not allowed; the error names the first.
    """
    if non_finite is None or (allowed and not converted):
        return
    rows = f"{non_finite.rows} rows hold"
    if non_finite.rows == 1:
        rows = "1 row holds"
    if converted:
        remedy = "converted rows cannot hold them: repair them, or copy the table as it is stored"
    else:
        remedy = (
            "repair them or take an older checkpoint; if no request reads them, allow them "
            f"(tables.{table}.allow_non_finite = true in a recipe, --allow-non-finite for tables)"
        )
    raise NotConvertible(
        f"table {table!r}: {rows} NaN or an infinity, first row {non_finite.first_row}; {remedy}"
    )


def _is_finite(data: NDArray[Any], dtype: str) -> NDArray[np.bool_]:
    exponents = _EXPONENTS.get(dtype)
    if exponents is None:
        result: NDArray[np.bool_] = np.isfinite(data.view(NUMPY_DTYPES[dtype]))
        return result
    # All bits of the exponent are set in NaN and infinities, whatever the sign and the mantissa.
    is_finite: NDArray[np.bool_] = (data.view(np.uint16) & exponents) != exponents
    return is_finite
