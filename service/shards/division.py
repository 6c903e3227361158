"""A version as a number of shards divides it: which shard holds which rows and candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bundle.arithmetic import ceil_div
from bundle.features.sources import RemoteTable
from bundle.format.manifest import Index, Table
from bundle.tables import sharding
from bundle.tables.shard_number import ShardNumber
from service.shards.calls import stored_bytes

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """Rows that are read together: those of all sharded tables of one row layout, or the vectors of
    one index.

    Attributes:
      names: The tables, in the order of their rows; or the index.
      bounds: The first row of each shard in each table, then the row behind the last one.
      dtype: The dtype of the stored rows.
      dim: The number of values per row.
      required: For each table, whether a lookup fails if a shard that holds its rows is
        unavailable.
      is_index: Whether these are the vectors of an index.
      is_finite: Whether the export allowed no row with NaN or an infinity.
    """

    names: Sequence[str]
    bounds: Rows
    dtype: str
    dim: int
    required: Sequence[bool]
    is_index: bool = False
    is_finite: bool = True

    @property
    def row_bytes(self) -> int:
        """The size of one row in a response."""
        return stored_bytes(self.dtype, self.dim)


class Division:
    """What each of a number of shards holds of a version.

    Attributes:
      shards: The shards.
      starts: The first row or candidate of each shard, then the number of all; by table and index.
      layouts: The layouts of tables, by name.
      indexes: The layouts of vectors, by index.
    """

    def __init__(
        self,
        total: int,
        tables: Mapping[str, Table],
        indexes: Mapping[str, Index],
        sizes: Mapping[str, int],
        remote: Mapping[str, RemoteTable],
    ) -> None:
        """Derives what each shard holds.

        Args:
          total: The number of shards.
          tables: The tables that shards hold.
          indexes: The indexes that shards hold.
          sizes: The number of candidates of each index.
          remote: For each table, where its rows lie among the rows of all tables of its layout.
        """
        self.shards = [ShardNumber(number, total) for number in range(1, total + 1)]
        self.starts = {
            f"tables.{name}": self._starts_of(table.rows) for name, table in tables.items()
        }
        self.layouts = self._layouts_of(tables, remote)
        self.indexes: dict[str, Layout] = {}
        for name, index in indexes.items():
            # Shards divide whole partitions, since a search visits partitions. All have the same
            # number of candidates but the last ones, which may have fewer.
            partition_rows = ceil_div(sizes[name], index.partitions)
            first_partitions = self._starts_of(index.partitions)
            bounds = np.minimum(first_partitions * partition_rows, sizes[name])
            self.starts[f"indexes.{name}"] = bounds
            self.indexes[name] = Layout([name], bounds, "float32", index.dim, [True], is_index=True)

    def _layouts_of(
        self, tables: Mapping[str, Table], remote: Mapping[str, RemoteTable]
    ) -> dict[str, Layout]:
        """Joins the tables whose rows can travel in one message.

        A message for each of dozens of tables at each shard would cost a router more than the rows.
        """
        names_by_layout: dict[str, list[str]] = {}
        for name, table in remote.items():
            names_by_layout.setdefault(table.among.name, []).append(name)

        layouts = {}
        for layout, names in names_by_layout.items():
            starts = []
            for name in names:
                first_rows = self.starts[f"tables.{name}"][:-1]
                starts.append(remote[name].first + first_rows)
            # Tables of one layout lie end to end, so that one search over all bounds finds both the
            # table and the shard of a row.
            last_table = remote[names[-1]]
            end = last_table.first + last_table.rows
            bounds = np.array([*np.concatenate(starts), end])
            required = [tables[name].unavailable == "error" for name in names]
            entry = tables[names[0]]
            is_finite = all(tables[name].non_finite is None for name in names)
            layouts[layout] = Layout(
                names, bounds, entry.dtype, entry.dim, required, is_finite=is_finite
            )
        return layouts

    def _starts_of(self, rows: int) -> Rows:
        """Returns the first row of each shard, then the number of rows."""
        starts = [sharding.row_range(rows, shard).first for shard in self.shards]
        return np.array([*starts, rows])
