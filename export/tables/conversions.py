"""Rows as a checkpoint stores them -> rows as a bundle holds them, piece by piece, and how far they
then lie apart.

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
"""Of tables in a bundle."""
AS_STORED = ("float32", "bfloat16", "float16")
"""Written as they are unless another dtype is asked for."""
INTEGERS = ("int32", "int64")
"""Written only if a dtype is asked for: an integer table may be no embedding."""

PIECE_VALUES = 1 << 16
"""Converted at a time."""
_EXACT_INTEGER = 1 << 53
_SQUARES_LOW = 1e-30
_SQUARES_HIGH = 1e30
"""Sums of squares within these are right in float32; where a row's are not, float64 is used."""
Values = NDArray[Any]


class ErrorSums(StrictModel):
    """How far some converted rows lie from the checkpoint's own; sums join exactly, in any order.

    Attributes:
      max_abs: largest difference of a value.
      squares: sum of the squares of all differences.
      cosine_min, cosines: least and sum of the rows' cosines.
    """

    rows: int
    max_abs: float
    squares: float
    cosine_min: float
    cosines: float


class Piece(NamedTuple):
    """Converted rows.

    Attributes:
      stored: [n, dim] as the bundle stores them.
      scales: [n] float32 of int8 rows.
    """

    stored: Values
    scales: NDArray[np.float32] | None


@dataclass(frozen=True, slots=True)
class ErrorLimits:
    """What the error of a converted table may be; None: anything."""

    max_abs: float | None = None
    rms: float | None = None
    cosine_min: float | None = None

    def check(self, name: str, error: TableError | None) -> None:
        """Rejects a table that was converted at too high a cost.

        Args:
          name: of the table.
          error: of its rows; None: they were not converted.
        Raises:
          VerificationFailed: a limit is broken; names it and the error.
        """
        if error is None:
            return
        for key, limit, found, broken in (
            ("max_abs_error", self.max_abs, error.max_abs, operator.gt),
            ("rms_error", self.rms, error.rms, operator.gt),
            ("cosine_min", self.cosine_min, error.cosine_min, operator.lt),
        ):
            if limit is not None and broken(found, limit):
                raise VerificationFailed(
                    f"table {name!r}: {key} of its converted rows is {found:.6g}, "
                    f"tables.{name}.{key} = {limit:g} "
                    f"rejects it; change the limit or tables.{name}.dtype"
                )


NO_LIMITS = ErrorLimits()


def written_dtype(name: str, stored: str, asked: str | None) -> str:
    """Returns the dtype that a table's rows will have in the bundle.

    Args:
      name: of the table.
      stored: dtype of the checkpoint's values.
      asked: by the user; None: float64 becomes float32, other floats stay as they are.
    Raises:
      NotConvertible: these values become no rows, or only if a dtype is asked for.
    """
    if asked is None and stored in INTEGERS:
        raise NotConvertible(
            f"table {name!r} holds {stored} values; if they are an embedding, say what they "
            f"become: --dtype {name}=float32 (in a recipe: tables.{name}.dtype)"
        )
    if stored not in (*AS_STORED, "float64", *INTEGERS):
        raise NotConvertible(
            f"table {name!r} holds {stored} values; exported are "
            f"{', '.join((*AS_STORED, 'float64', *INTEGERS))}; cast "
            "the variable and save the checkpoint anew"
        )
    return asked or ("float32" if stored == "float64" else stored)


class Conversion:
    """Converts the rows of one task and sums up what that costs."""

    def __init__(self, table: str, source: str, target: str) -> None:
        """Begins.

        Args:
          table: its name, for messages.
          source: dtype of the checkpoint's values.
          target: dtype of the bundle's.
        """
        self._table = table
        self._source = NUMPY_DTYPES[source]
        self._target = target
        self._errors: list[ErrorSums] = []

    def pieces(self, rows: NDArray[np.uint8], first_row: int) -> Iterator[Piece]:
        """Yields rows converted, some at a time.

        Args:
          rows: [n, bytes of a stored row].
          first_row: the number of the first of them in the table.
        Raises:
          NotConvertible: a value is NaN or infinite, or too large for the target; names its row.
        """
        values = rows.view(self._source)
        step = max(1, PIECE_VALUES // values.shape[1])
        for start in range(0, len(values), step):
            yield self._piece(values[start : start + step], first_row + start)

    @property
    def error(self) -> ErrorSums:
        """Of all rows so far."""
        return _joined(self._errors)

    def _piece(self, values: Values, first_row: int) -> Piece:
        wide = values.dtype == np.float64 or values.dtype.kind == "i"
        # float64 holds the wide values exactly, and float32 the others.
        values = values.astype(np.float64 if wide else np.float32, copy=False)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            stored, scales = narrowed(values, self._target)
            read = widened(stored, self._target, scales)
            squares = np.einsum("ij,ij->i", values, values)
            odd = (squares < _SQUARES_LOW) | (squares > _SQUARES_HIGH)
            if wide or values[odd].any():
                values = values.astype(np.float64)
                read = read.astype(np.float64)
            error = _error(values, read)
        if not math.isfinite(error.squares) or self._source.kind == "i":
            self._reject_lost(values.astype(np.float64), read, first_row)
        self._errors.append(error)
        return Piece(stored, scales)

    def _reject_lost(self, values: Values, read: Values, first_row: int) -> None:
        exact = self._source.kind == "i"
        for lost, why in (
            (
                ~np.isfinite(values),
                "which only a table that is copied as it is may hold; mend it, or state no dtype",
            ),
            (~np.isfinite(read), f"which is too large for {self._target}; choose another dtype"),
            (
                exact & (np.abs(values) > _EXACT_INTEGER),
                "which no float holds exactly; leave the table out",
            ),
        ):
            if lost.any():
                place = int(np.argmax(lost.any(axis=1)))
                column = int(np.argmax(np.abs(values[place])))
                value = values[place, column]
                raise NotConvertible(
                    f"table {self._table!r}: row {first_row + place} holds {value:g} in column "
                    f"{column}, {why}"
                )


def table_error(source: str, dim: int, sums: Iterable[ErrorSums]) -> TableError:
    """Returns the error of a table from those of its parts, in any order.

    Args:
      source: dtype of the checkpoint's values.
      dim: of the table.
      sums: at least one.
    """
    whole = _joined(list(sums))
    return TableError(
        source_dtype=source,
        max_abs=whole.max_abs,
        rms=_in_digits(math.sqrt(whole.squares / (whole.rows * dim))),
        cosine_min=_in_digits(whole.cosine_min),
        cosine_mean=_in_digits(whole.cosines / whole.rows),
    )


def _joined(sums: Sequence[ErrorSums]) -> ErrorSums:
    return ErrorSums(
        rows=sum(each.rows for each in sums),
        max_abs=max(each.max_abs for each in sums),
        squares=math.fsum(each.squares for each in sums),
        cosine_min=min(each.cosine_min for each in sums),
        cosines=math.fsum(each.cosines for each in sums),
    )


def read_dtypes(asked: Sequence[str]) -> tuple[str | None, tuple[tuple[str, str], ...]]:
    """Reads what `--dtype` was given.

    Args:
      asked: of each time: DTYPE, of all tables, or NAME=DTYPE.
    Returns:
      The dtype of all tables, None if it was not said; and (table, dtype) of some, which counts
      more.
    Raises:
      UsageError: a dtype is none that a bundle holds; lists those that are.
    """
    pairs = [(name, dtype) for name, _, dtype in (text.rpartition("=") for text in asked)]
    for name, dtype in pairs:
        if dtype not in DTYPES:
            given = f"{name}={dtype}" if name else dtype
            raise UsageError(
                f"--dtype {given!r} was given; [NAME=]DTYPE was expected, one of "
                f"{', '.join(DTYPES)}"
            )
    single = dict(pair for pair in pairs if pair[0])
    return next((dtype for name, dtype in reversed(pairs) if not name), None), tuple(single.items())


def _in_digits(value: float) -> float:
    # Sums of float32 differ from processor to processor in their last digits; what is reported does
    # not.
    return float(f"{value:.6g}")


def _error(values: Values, read: Values) -> ErrorSums:
    """Returns what it costs to read [n, dim] for what they were; a cosine is 1 of two rows of
    zeros.
    """
    difference = np.subtract(read, values)
    squares, products, lengths, apart = (
        np.einsum("ij,ij->i", one, other).astype(np.float64, copy=False)
        for one, other in ((values, values), (values, read), (read, read), (difference, difference))
    )
    cosines = np.where(squares == 0, 1.0, 0.0)
    np.divide(products, np.sqrt(squares * lengths), out=cosines, where=squares * lengths > 0)
    np.minimum(cosines, 1, out=cosines)
    return ErrorSums(
        rows=len(values),
        max_abs=float(max(difference.max(), -difference.min())),
        squares=float(apart.sum()),
        cosine_min=float(cosines.min()),
        cosines=float(cosines.sum()),
    )
