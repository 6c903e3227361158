"""Rows that hold NaN or an infinity, found while they are copied.

One such row makes every response that reads it an error, and mostly means that training diverged.
The bytes are in the core's cache anyway, so that to look at them costs a few percent of a copy.
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
        """Begins.

        Args:
          dtype: of the values; integers are always finite.
          dim: values in a row.
        """
        self._dtype = dtype
        self._dim = dim
        self._is_float = dtype in _EXPONENTS or NUMPY_DTYPES[dtype].kind == "f"
        self._rows = 0
        self._first: int | None = None
        self._last: int | None = None

    def scan(self, data: Bytes, first_byte: int) -> NDArray[np.int64]:
        """Looks at values.

        Args:
          data: whole values in one piece, whatever the shape.
          first_byte: where they begin in the rows of the table, one after another.

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
        first = int(rows[0])
        self._rows += rows.size - (first == self._last)
        self._first = first if self._first is None else min(self._first, first)
        self._last = int(rows[-1])
        return rows

    @property
    def found(self) -> NonFiniteRows | None:
        """The rows so far; None: all are finite."""
        if self._first is None:
            return None
        return NonFiniteRows(rows=self._rows, first_row=self._first)


def joined(parts: Iterable[NonFiniteRows | None]) -> NonFiniteRows | None:
    """Returns the rows that several tasks found in a table; None: all are finite."""
    found = [part for part in parts if part is not None]
    if not found:
        return None
    return NonFiniteRows(
        rows=sum(part.rows or 0 for part in found),
        first_row=min(part.first_row or 0 for part in found),
    )


def check_finite(
    table: str, found: NonFiniteRows | None, *, allowed: bool, converted: bool = False
) -> None:
    """Rejects a table with rows that are not finite.

    Args:
      table: its name.
      found: the rows that were found; None: all are finite.
      allowed: whether the user allows them.
      converted: whether the rows were converted, so that they cannot be allowed.

    Raises:
      NotConvertible: it has such rows, and they are not allowed; names the first.
    """
    if found is None or (allowed and not converted):
        return
    rows = "1 row holds" if found.rows == 1 else f"{found.rows} rows hold"
    remedy = (
        "converted rows cannot hold them: repair them, or copy the table as it is stored"
        if converted
        else "repair them or take an older checkpoint; if no request reads them, allow them "
        f"(tables.{table}.allow_non_finite = true in a recipe, --allow-non-finite for tables)"
    )
    raise NotConvertible(
        f"table {table!r}: {rows} NaN or an infinity, first row {found.first_row}; {remedy}"
    )


def _is_finite(data: NDArray[Any], dtype: str) -> NDArray[np.bool_]:
    exponents = _EXPONENTS.get(dtype)
    if exponents is None:
        found: NDArray[np.bool_] = np.isfinite(data.view(NUMPY_DTYPES[dtype]))
        return found
    is_finite: NDArray[np.bool_] = (data.view(np.uint16) & exponents) != exponents
    return is_finite
