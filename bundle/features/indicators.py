"""The table of an indicator: row r is 1 at r and 0 elsewhere. It is never stored: what is read of it is counted."""

from __future__ import annotations

import numpy as np

from bundle.errors import RowOutOfRange
from bundle.tables.combiner import Combiner, Offsets, Vectors, Weights
from bundle.tables.id_values import Rows


class Indicator:
    """Reads as a TableReader does.

    Attributes:
      rows, dim: both its width.
      native: no compiled code reads it.
    """

    native = None

    def __init__(self, width: int) -> None:
        self.rows = self.dim = width

    def gather(self, rows: Rows, out: Vectors | None = None) -> Vectors:
        """See TableReader.gather."""
        beyond = rows.view(np.uint64) >= np.uint64(self.rows)
        if np.count_nonzero(beyond):
            raise RowOutOfRange(f"row {rows[beyond][0]} asked; the indicator has {self.rows} rows")
        return self.take(rows, out)

    def take(self, rows: Rows, out: Vectors | None = None) -> Vectors:
        """See TableReader.take."""
        return self.bags(rows, np.arange(rows.size + 1), "sum", None, out)

    def bags(
        self,
        rows: Rows,
        offsets: Offsets,
        combiner: Combiner,
        weights: Weights | None = None,
        out: Vectors | None = None,
    ) -> Vectors:
        """See TableReader.bags; the combiner of an indicator is always `sum`."""
        del combiner
        kept = rows >= 0
        example = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))[kept]
        sums = np.empty((offsets.size - 1, self.dim), np.float32) if out is None else out
        sums[...] = 0
        np.add.at(sums, (example, rows[kept]), np.float32(1) if weights is None else weights[kept])
        return sums


class Ordinal(Indicator):
    """The table in which row r is the one number r, exact up to 2^24; it is taken row by row, and not combined."""

    def __init__(self, rows: int) -> None:
        self.rows, self.dim = rows, 1

    def take(self, rows: Rows, out: Vectors | None = None) -> Vectors:
        """See TableReader.take."""
        found = np.maximum(rows, 0).astype(np.float32)[:, np.newaxis]
        if out is None:
            return found
        out[...] = found
        return out
