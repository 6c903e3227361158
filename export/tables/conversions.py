"""Rows as a checkpoint stores them -> rows as a bundle holds them, piece by piece, and the
difference between both.

Nothing here knows where rows come from or go to. A piece is small enough to stay in the core's
cache for all passes.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.format.dtypes import narrowed, widened
from bundle.format.fields import StrictModel
from bundle.format.manifest import TableError
from export.checkpoint.variables import NUMPY_DTYPES
from export.errors import NotConvertible, UsageError, VerificationFailed

DTYPES = ("float32", "bfloat16", "float16", "int8")
"""The dtypes of tables in a bundle."""
UNCHANGED_DTYPES = ("float32", "bfloat16", "float16")
"""The dtypes of rows that are written as they are unless another dtype is requested."""
INTEGERS = ("int32", "int64")
"""The dtypes of rows that are written only if a dtype is requested: an integer table may be no
embedding.
"""

PIECE_VALUES = 1 << 16
"""The number of values converted at a time, which fit the core's cache."""
_EXACT_INTEGER = 1 << 53
"""The largest integer up to which float64 holds every one."""
_SQUARES_LOW = 1e-30
_SQUARES_HIGH = 1e30
"""The limits within which sums of squares are right in float32. For other rows, float64 is used."""
Values = NDArray[Any]


class ErrorSums(StrictModel):
    """The error of converted rows against the checkpoint's rows. Sums join exactly, in any order.

    Attributes:
      rows: The number of rows.
      max_abs: The largest difference of a value.
      squares: The sum of the squares of all differences.
      cosine_min, cosines: The minimum and the sum of the rows' cosines.
    """

    rows: int
    max_abs: float
    squares: float
    cosine_min: float
    cosines: float


class Piece(NamedTuple):
    """Converted rows.

    Attributes:
      stored: [n, dim], the rows as the bundle stores them.
      scales: [n] float32, the scales of int8 rows; None if the rows have another dtype.
    """

    stored: Values
    scales: NDArray[np.float32] | None


@dataclass(frozen=True, slots=True)
class ErrorLimits:
    """Limits of the error of a converted table; None: no limit."""

    max_abs: float | None = None
    rms: float | None = None
    cosine_min: float | None = None

    def check(self, name: str, error: TableError | None) -> None:
        """Rejects a table that was converted at too high a cost.

        Args:
          name: The name of the table.
          error: The error of the table's rows; None if they were not converted.
        Raises:
          VerificationFailed: A limit is broken; the error names it.
        """
        if error is None:
            return
        for key, limit, error_value, is_broken in (
            ("max_abs_error", self.max_abs, error.max_abs, operator.gt),
            ("rms_error", self.rms, error.rms, operator.gt),
            ("cosine_min", self.cosine_min, error.cosine_min, operator.lt),
        ):
            if limit is not None and is_broken(error_value, limit):
                raise VerificationFailed(
                    f"table {name!r}: {key} of its converted rows is {error_value:.6g}, "
                    f"tables.{name}.{key} = {limit:g} rejects it; change the limit or "
                    f"tables.{name}.dtype"
                )


NO_LIMITS = ErrorLimits()


def written_dtype(name: str, stored: str, requested: str | None) -> str:
    """Returns the dtype that a table's rows will have in the bundle.

    Args:
      name: The name of the table.
      stored: The dtype of the checkpoint's values.
      requested: The dtype that the user requests; None: float64 becomes float32, other floats stay
        as they are.
    Raises:
      NotConvertible: These values become no rows, or only if a dtype is requested.
    """
    if requested is None and stored in INTEGERS:
        raise NotConvertible(
            f"table {name!r} holds {stored} values; if they are an embedding, say what they "
            f"become: --dtype {name}=float32 (in a recipe: tables.{name}.dtype)"
        )
    if stored not in (*UNCHANGED_DTYPES, "float64", *INTEGERS):
        raise NotConvertible(
            f"table {name!r} holds {stored} values; exported are "
            f"{', '.join((*UNCHANGED_DTYPES, 'float64', *INTEGERS))}; cast the variable and save "
            "the checkpoint anew"
        )
    if requested:
        return requested
    # Bundles have no float64: the trained precision is that of float32.
    if stored == "float64":
        return "float32"
    return stored


class Conversion:
    """Converts the rows of one task, and sums the error of the conversion."""

    def __init__(self, table: str, source: str, target: str) -> None:
        """Prepares the conversion of the rows of one task.

        Args:
          table: The table's name, for messages.
          source: The dtype of the checkpoint's values.
          target: The dtype of the bundle's values.
        """
        self._table = table
        self._source = NUMPY_DTYPES[source]
        self._target = target
        self._errors: list[ErrorSums] = []

    def pieces(self, rows: NDArray[np.uint8], first_row: int) -> Iterator[Piece]:
        """Yields converted rows, some at a time.

        Args:
          rows: [n, bytes of a stored row], the rows to convert.
          first_row: The number of the first row in the table.
        Raises:
          NotConvertible: A value is NaN or infinite, or too large for the target; the error names
            its row.
        """
        values = rows.view(self._source)
        step = max(1, PIECE_VALUES // values.shape[1])
        for start in range(0, len(values), step):
            yield self._piece(values[start : start + step], first_row + start)

    def stored(self, rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Returns rows as `pieces` converts them, but for values that it rejects, which become any.

        Args:
          rows: [n, bytes of a stored row], the rows to convert.

        Returns:
          [n, bytes of a converted row], without scales.
        """
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            stored, _ = narrowed(_as_floats(rows.view(self._source)), self._target)
        return np.ascontiguousarray(stored).view(np.uint8)

    @property
    def error(self) -> ErrorSums:
        """The error of all rows so far."""
        return _join(self._errors)

    def _piece(self, values: Values, first_row: int) -> Piece:
        values = _as_floats(values)
        is_wide = values.dtype == np.float64
        # Values that overflow raise no warning: they are found below, with their rows.
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            stored, scales = narrowed(values, self._target)
            read_values = widened(stored, self._target, scales)
            squares = np.einsum("ij,ij->i", values, values)
            is_extreme = (squares < _SQUARES_LOW) | (squares > _SQUARES_HIGH)
            # Rows of zeros are below the limit, too, but float32 holds their sums exactly.
            if is_wide or values[is_extreme].any():
                values = values.astype(np.float64)
                read_values = read_values.astype(np.float64)
            error = _error(values, read_values)
        # A lost float makes the sum infinite or NaN. An integer may lose digits without that.
        if not math.isfinite(error.squares) or self._source.kind == "i":
            self._reject_lost(values.astype(np.float64), read_values, first_row)
        self._errors.append(error)
        return Piece(stored, scales)

    def _reject_lost(self, values: Values, read_values: Values, first_row: int) -> None:
        is_integer = self._source.kind == "i"
        for is_lost, reason in (
            (
                ~np.isfinite(values),
                "which only a table that is copied as it is may hold; mend it, or state no dtype",
            ),
            (
                ~np.isfinite(read_values),
                f"which is too large for {self._target}; choose another dtype",
            ),
            (
                is_integer & (np.abs(values) > _EXACT_INTEGER),
                "which no float holds exactly; leave the table out",
            ),
        ):
            if is_lost.any():
                row = int(np.argmax(is_lost.any(axis=1)))
                # argmax takes NaN for the largest value, so that it finds any kind of lost value.
                column = int(np.argmax(np.abs(values[row])))
                value = values[row, column]
                raise NotConvertible(
                    f"table {self._table!r}: row {first_row + row} holds {value:g} in column "
                    f"{column}, {reason}"
                )


def _as_floats(values: Values) -> Values:
    """Returns values as float32 or, if that does not hold all of them exactly, as float64."""
    is_wide = values.dtype == np.float64 or values.dtype.kind == "i"
    return values.astype(np.float64 if is_wide else np.float32, copy=False)


def table_error(source: str, dim: int, sums: Iterable[ErrorSums]) -> TableError:
    """Returns the error of a table from those of its parts, in any order.

    Args:
      source: The dtype of the checkpoint's values.
      dim: The width of the table.
      sums: The errors of the parts, at least one.
    """
    whole = _join(list(sums))
    return TableError(
        source_dtype=source,
        max_abs=whole.max_abs,
        rms=_round_digits(math.sqrt(whole.squares / (whole.rows * dim))),
        cosine_min=_round_digits(whole.cosine_min),
        cosine_mean=_round_digits(whole.cosines / whole.rows),
    )


def _join(sums: Sequence[ErrorSums]) -> ErrorSums:
    # fsum rounds only its result, so that the order of the parts changes no digit.
    return ErrorSums(
        rows=sum(error.rows for error in sums),
        max_abs=max(error.max_abs for error in sums),
        squares=math.fsum(error.squares for error in sums),
        cosine_min=min(error.cosine_min for error in sums),
        cosines=math.fsum(error.cosines for error in sums),
    )


def read_dtypes(values: Sequence[str]) -> tuple[str | None, tuple[tuple[str, str], ...]]:
    """Reads the values of `--dtype`.

    Args:
      values: The values: DTYPE for all tables, or NAME=DTYPE.
    Returns:
      The dtype of all tables, None if no value states it; and (table, dtype) for single tables,
      which takes precedence.
    Raises:
      UsageError: A bundle holds no such dtype; the error lists the dtypes of bundles.
    """
    pairs = [(name, dtype) for name, _, dtype in (text.rpartition("=") for text in values)]
    for name, dtype in pairs:
        if dtype not in DTYPES:
            value = f"{name}={dtype}" if name else dtype
            raise UsageError(
                f"--dtype {value!r} was given; [NAME=]DTYPE was expected, one of "
                f"{', '.join(DTYPES)}"
            )
    dtype_of_table = dict(pair for pair in pairs if pair[0])
    return next((dtype for name, dtype in reversed(pairs) if not name), None), tuple(
        dtype_of_table.items()
    )


def _round_digits(value: float) -> float:
    # Sums of float32 differ from processor to processor in their last digits. Reports must not.
    return float(f"{value:.6g}")


def _row_products(first: Values, second: Values) -> NDArray[np.float64]:
    """Returns [n] float64, the inner products of the rows of two arrays."""
    products = np.einsum("ij,ij->i", first, second)
    return np.asarray(products, np.float64)


def _error(values: Values, read_values: Values) -> ErrorSums:
    """Returns the error of reading `read_values` [n, dim] where `values` were trained. The cosine
    of two rows of zeros is 1.
    """
    difference = np.subtract(read_values, values)
    value_squares = _row_products(values, values)
    products = _row_products(values, read_values)
    read_squares = _row_products(read_values, read_values)
    difference_squares = _row_products(difference, difference)
    cosines = np.where(value_squares == 0, 1.0, 0.0)
    np.divide(
        products,
        np.sqrt(value_squares * read_squares),
        out=cosines,
        where=value_squares * read_squares > 0,
    )
    # The cosine of rows that are nearly equal may be rounded to more than 1.
    np.minimum(cosines, 1, out=cosines)
    return ErrorSums(
        rows=len(values),
        max_abs=float(max(difference.max(), -difference.min())),
        squares=float(difference_squares.sum()),
        cosine_min=float(cosines.min()),
        cosines=float(cosines.sum()),
    )
