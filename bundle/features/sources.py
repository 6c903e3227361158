"""The sources that features read besides mapped tables: indicators, which are never stored, remote
rows, and small tables in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle import native
from bundle.format.manifest import Table
from bundle.tables.combiner import Combiner, Vectors, Weights, combine_rows
from bundle.tables.id_values import Rows
from bundle.tables.offsets import Offsets, offsets_of
from bundle.tables.reader import TableReader

_TABLE_BYTES = 256 << 10
"""The maximum size of one table in memory, as float32."""
_ALL_BYTES = 64 << 20
"""The maximum size of all tables of a reader in memory; the smallest are taken first."""
_TABLES_MIN = 16
"""The minimum number of tables of one dtype and width that are laid side by side."""


class Indicator:
    """The table whose row r is 1 at r and 0 elsewhere; reads as a TableReader does.

    Attributes:
      rows, dim: The shape of the table; both are its width.
    """

    native = None

    def __init__(self, width: int) -> None:
        self.rows = self.dim = width

    def take(self, rows: Rows) -> Vectors:
        """See TableReader.take."""
        return self.bags(rows, np.arange(rows.size + 1), "sum")

    def bags(
        self, rows: Rows, offsets: Offsets, combiner: Combiner, weights: Weights | None = None
    ) -> Vectors:
        """See TableReader.bags; the combiner of an indicator is always `sum`."""
        del combiner
        # np.add.at, unlike an addition by indices, counts a row that comes twice in a bag twice.
        examples = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
        if weights is None:
            weights = np.ones(rows.size, np.float32)
        exists = rows >= 0
        sums = np.zeros((offsets.size - 1, self.dim), np.float32)
        np.add.at(sums, (examples[exists], rows[exists]), weights[exists])
        return sums


class Ordinal(Indicator):
    """The table in which row r is the one number r, exact up to 2^24; it is taken row by row, and
    not combined.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.dim = 1

    def take(self, rows: Rows) -> Vectors:
        """See TableReader.take."""
        return np.maximum(rows, 0).astype(np.float32)[:, np.newaxis]


class RemoteRows(NamedTuple):
    """The rows of all remote tables of one row layout, one table behind the other; their `name` is
    that of the layout.
    """

    name: str
    dim: int


class RemoteTable:
    """A table whose rows other processes hold: the rows of a batch are fetched before they are
    read.

    Attributes:
      rows, dim: The shape of the table.
      among: The rows that are fetched together with its own.
      first: The position of its row 0 among them.
      replaces_lost: Whether lost rows follow the unknown rule of their feature.
    """

    native = None

    def __init__(
        self, rows: int, among: RemoteRows, first: int = 0, *, replaces_lost: bool = False
    ) -> None:
        self.rows = rows
        self.dim = among.dim
        self.among = among
        self.first = first
        self.replaces_lost = replaces_lost


@dataclass(frozen=True, eq=False)
class FetchedRows:
    """The remote rows that one batch reads; reads as a TableReader does.

    Attributes:
      rows: [n] int64, distinct and ascending.
      vectors: [n, dim] float32; zeros for lost rows.
      lost: [n] bool, whether no process that holds the row could be reached. None: All rows were
        fetched.
      lost_by_table: The number of lost rows by table.
    """

    rows: Rows
    vectors: Vectors
    lost: NDArray[np.bool_] | None = None
    lost_by_table: Mapping[str, int] = field(default_factory=dict)

    def is_lost(self, rows: Rows) -> NDArray[np.bool_]:
        """Returns which of some fetched rows are lost: [m] bool for [m] int64 rows; False for a
        negative one.
        """
        if self.lost is None or not self.rows.size:
            return np.zeros(rows.size, bool)
        is_lost: NDArray[np.bool_] = self.lost[self._indices(rows)] & (rows >= 0)
        return is_lost

    def take(self, rows: Rows) -> Vectors:
        """See TableReader.take."""
        if not self.rows.size:
            return np.zeros((rows.size, self.vectors.shape[1]), np.float32)
        vectors: Vectors = self.vectors.take(self._indices(rows), axis=0)
        vectors[rows < 0] = 0
        return vectors

    def bags(
        self, rows: Rows, offsets: Offsets, combiner: Combiner, weights: Weights | None = None
    ) -> Vectors:
        """See TableReader.bags."""
        return combine_rows(self.take, rows, offsets, combiner, weights)

    def _indices(self, rows: Rows) -> Rows:
        """Returns where rows are among those that were fetched."""
        # Only -1 is not among them, for which any index will do.
        return np.minimum(self.rows.searchsorted(rows), self.rows.size - 1)


Fetched = Mapping[str, FetchedRows]
"""Remote rows by layout."""


def remote_tables(tables: Mapping[str, Table]) -> dict[str, RemoteTable]:
    """Returns the tables of a manifest as remote tables. Tables of one row layout lie one behind
    the other, in their order.
    """
    remote = dict[str, RemoteTable]()
    ends = dict[str, int]()
    for name, table in tables.items():
        # Rows of one layout travel in one array, whatever their tables.
        layout = f"{table.dtype}[{table.dim}]"
        first = ends.get(layout, 0)
        remote[name] = RemoteTable(
            table.rows,
            RemoteRows(layout, table.dim),
            first,
            replaces_lost=table.unavailable == "unknown",
        )
        ends[layout] = first + table.rows
    return remote


class SideBySide:
    """The rows of several small tables of one dtype and width in memory: one gather reads rows of
    many.

    Attributes:
      dim: The width of all tables.
      firsts: The position of row 0 of each table.
    """

    def __init__(self, tables: Sequence[TableReader], dim: int) -> None:
        """Reads all rows of the tables."""
        starts = offsets_of([table.rows for table in tables]).tolist()
        self.dim = dim
        self.firsts: Mapping[TableReader, int] = dict(zip(tables, starts, strict=False))
        values = np.concatenate([table.take(np.arange(table.rows)) for table in tables])
        self._values: NDArray[np.float32] = values
        segments = [(values.reshape(-1).view(np.uint8), 0, len(values), None)]
        self._native = native.Rows and native.Rows("float32", dim, segments, None)

    def take(self, rows: Rows) -> NDArray[np.float32]:
        """See TableReader.take."""
        if self._native is not None:
            return self._native.take(rows, None)
        vectors: NDArray[np.float32] = self._values.take(rows, axis=0, mode="clip")
        vectors[rows < 0] = 0
        return vectors

    def bags(
        self, rows: Rows, offsets: Offsets, combiner: Combiner, weights: Weights | None = None
    ) -> NDArray[np.float32]:
        """See TableReader.bags."""
        if self._native is not None:
            return self._native.bags(rows, offsets, combiner, weights, None)
        return combine_rows(self.take, rows, offsets, combiner, weights)


RowReader = TableReader | SideBySide | Indicator | FetchedRows
"""An object that reads rows as a TableReader does."""


class RowSource(NamedTuple):
    """The object that reads the rows of a table, and the position of the table's row 0 in it."""

    rows: TableReader | RemoteRows | SideBySide | Indicator
    first: int = 0


def small_tables(tables: Iterable[TableReader]) -> Mapping[object, RowSource]:
    """Lays small tables side by side; returns their sources by table."""
    # The smallest first: most of them fit.
    tables_by_kind: dict[tuple[str, int], list[TableReader]] = {}
    total_bytes = 0
    for table in sorted(dict.fromkeys(tables), key=_bytes):
        total_bytes += _bytes(table)
        if _bytes(table) <= _TABLE_BYTES and total_bytes <= _ALL_BYTES and table.rows:
            tables_by_kind.setdefault((table.dtype, table.dim), []).append(table)
    sources: dict[object, RowSource] = {}
    for (_, dim), tables_of_kind in tables_by_kind.items():
        if len(tables_of_kind) >= _TABLES_MIN:
            rows = SideBySide(tables_of_kind, dim)
            sources |= {table: RowSource(rows, first) for table, first in rows.firsts.items()}
    return sources


def _bytes(table: TableReader) -> int:
    """Returns the size of a table in memory, as float32."""
    return 4 * table.rows * table.dim
