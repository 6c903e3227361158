"""Small tables side by side in memory: one gather reads rows of many, where each alone costs calls for a row or two."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from bundle import native
from bundle.features.indicators import Indicator
from bundle.tables.combiner import Combiner, Offsets, Weights, combine_rows
from bundle.tables.id_values import Rows
from bundle.tables.reader import TableReader

_TABLE_BYTES = 256 << 10
"""The most that one table may take, as float32."""
_ALL_BYTES = 64 << 20
"""The most that all may take, of one reader; the smallest come first."""
_FEWEST = 16
"""Tables of one width from which on they are laid side by side."""


class SideBySide:
    """Rows of several tables of one width.

    Attributes:
      dim: their width.
    """

    def __init__(self, tables: Iterable[TableReader], dim: int) -> None:
        """Reads the tables whole."""
        self.dim = dim
        values = np.concatenate([table.take(np.arange(table.rows)) for table in tables])
        self._values: NDArray[np.float32] = values
        self._native = native.Rows and native.Rows(
            "float32", dim, [(values.reshape(-1).view(np.uint8), 0, len(values))], None
        )

    def take(self, rows: Rows) -> NDArray[np.float32]:
        """Returns [n, dim] float32; see TableReader.take."""
        if self._native is not None:
            return self._native.take(rows, None)
        found: NDArray[np.float32] = self._values.take(rows, axis=0, mode="clip")
        found[rows < 0] = 0
        return found

    def bags(self, rows: Rows, offsets: Offsets, combiner: Combiner, weights: Weights | None) -> NDArray[np.float32]:
        """Returns [n, dim] float32; see TableReader.bags."""
        if self._native is not None:
            return self._native.bags(rows, offsets, combiner, weights, None)
        return combine_rows(self.take, rows, offsets, combiner, weights)


@dataclass(frozen=True)
class Home:
    """Where the rows of a table are read, and its row 0 there."""

    rows: TableReader | SideBySide | Indicator
    first: int = 0


def small_tables(tables: Iterable[TableReader]) -> Mapping[int, Home]:
    """Lays small tables side by side; returns their homes by the table's `id`."""
    widths: dict[int, list[TableReader]] = {}
    left = _ALL_BYTES
    for table in sorted({id(table): table for table in tables}.values(), key=_bytes):
        left -= _bytes(table)
        if _bytes(table) <= _TABLE_BYTES and left >= 0 and table.rows:
            widths.setdefault(table.dim, []).append(table)
    homes: dict[int, Home] = {}
    for dim, members in widths.items():
        if len(members) < _FEWEST:
            continue
        together = SideBySide(members, dim)
        starts = np.cumsum([0, *(table.rows for table in members)]).tolist()
        homes.update((id(table), Home(together, start)) for table, start in zip(members, starts, strict=False))
    return MappingProxyType(homes)


def _bytes(table: TableReader) -> int:
    return 4 * table.rows * table.dim
