"""Reads rows of one layout from the shards that hold them: what each call requests, and how the
responses are put together.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bundle.features.sources import FetchedRows
from bundle.format.dtypes import SCALE_BYTES, STORED, row_bytes, widened
from bundle.tables.shard_number import ShardNumber
from service.codec.stubs import shard_service_pb2 as shard_pb
from service.errors import Code, Internal, ServiceError
from service.shards.division import Layout, Rows
from service.shards.messages import LIST_BYTES


class LayoutRead:
    """Reads distinct ascending rows of one layout from the shards that hold them.

    Attributes:
      layout: The layout.
      tables: [rows] The number of the table of each row.
      positions: [rows] uint32, the position of each row among the rows of its table on its shard.
    """

    def __init__(self, layout: Layout, rows: Rows) -> None:
        """Finds the table and the shard of each row."""
        self.layout = layout
        self._rows = rows

        # The bounds list, table after table, the first row of each shard, and the rows ascend. One
        # bisection therefore counts the rows of every table on every shard.
        counts = np.diff(rows.searchsorted(layout.bounds))
        table_count = len(layout.names)
        shard_count = counts.size // table_count
        shard_numbers = np.arange(1, shard_count + 1)
        self._owners = np.tile(shard_numbers, table_count).repeat(counts)
        """[rows] The number of the shard that holds each row."""
        self.tables = np.arange(table_count).repeat(shard_count).repeat(counts)
        first_rows = layout.bounds[:-1].repeat(counts)
        self.positions = (rows - first_rows).astype("<u4")

        self._vectors = np.empty((rows.size, layout.dim), np.float32)
        self._unavailable: NDArray[np.bool_] | None = None
        self._unavailable_by_table = Counter[str]()

    def slice_on(self, shard: ShardNumber) -> ShardSlice:
        """Returns the rows that a shard holds."""
        return ShardSlice(self, np.flatnonzero(self._owners == shard.number))

    def store(self, shard_slice: ShardSlice, vectors: NDArray[np.float32]) -> None:
        """Stores rows that a shard returned."""
        self._vectors[shard_slice.rows] = vectors

    def mark_unavailable(self, shard_slice: ShardSlice, problem: ServiceError) -> None:
        """Replaces rows of a shard by zeros, if the `unavailable` rule of every table allows it.

        Raises:
          ServiceError: The shard could be reached and failed, or a table is required.
        """
        counts = shard_slice.counts
        required = set(itertools.compress(self.layout.names, self.layout.required))
        # A shard that responded with an error is not lost, so its rows do not count as unknown.
        if problem.code is not Code.NOT_READY or not required.isdisjoint(counts):
            raise problem

        if self._unavailable is None:
            self._unavailable = np.zeros(self._rows.size, np.bool_)
        self._unavailable[shard_slice.rows] = True
        self._vectors[shard_slice.rows] = 0
        self._unavailable_by_table.update(counts)

    def fetched(self) -> FetchedRows:
        """Returns the rows that were read, and which of them are unavailable."""
        return FetchedRows(self._rows, self._vectors, self._unavailable, self._unavailable_by_table)


@dataclass(frozen=True)
class ShardSlice:
    """Rows of one layout that one call reads from a shard.

    Attributes:
      read: The read that the rows belong to.
      rows: [n] int64, the positions of the rows among all rows of the read, ascending.
    """

    read: LayoutRead
    rows: Rows

    @property
    def counts(self) -> dict[str, int]:
        """The number of rows of each table that has any."""
        names = self.read.layout.names
        tables = self.read.tables[self.rows]
        counts = np.bincount(tables, minlength=len(names)).tolist()
        return {name: count for name, count in zip(names, counts, strict=True) if count}

    @property
    def response_bytes(self) -> int:
        """The size of the rows as they are returned."""
        return self.rows.size * self.read.layout.row_bytes

    @property
    def request_bytes(self) -> int:
        """The size of the positions as they are requested."""
        return 4 * self.rows.size + LIST_BYTES * len(self.read.layout.names)

    def pieces(self, response_bytes: int, request_bytes: int) -> list[ShardSlice]:
        """Divides the rows into pieces that fit into messages of these sizes."""
        layout = self.read.layout
        positions_bytes = request_bytes - LIST_BYTES * len(layout.names)
        # One row at least, or there would be no progress: a limit below that fails at the shard.
        rows_max = max(1, min(response_bytes // layout.row_bytes, positions_bytes // 4))
        ends = range(rows_max, self.rows.size, rows_max)
        return [ShardSlice(self.read, rows) for rows in np.split(self.rows, ends)]

    def message(self) -> shard_pb.Rows:
        """Returns the part of a shard's request that is for these rows."""
        layout = self.read.layout
        positions = self.read.positions[self.rows].tobytes()
        if layout.is_index:
            return shard_pb.Rows(index=layout.names[0], positions=positions)
        counts = self.counts
        return shard_pb.Rows(
            tables=list(counts),
            counts=np.array(list(counts.values()), "<u4").tobytes(),
            positions=positions,
        )

    def vectors(self, shard: ShardNumber, stored: shard_pb.StoredRows) -> NDArray[np.float32]:
        """Returns the rows that a shard returned, [rows, dim] float32 in the order of the request.

        Raises:
          Internal: They are not the rows that were requested, by their sizes.
        """
        layout = self.read.layout
        count = self.rows.size
        value_bytes = count * row_bytes(layout.dtype, layout.dim)
        scale_bytes = 0
        if layout.dtype == "int8":
            scale_bytes = count * SCALE_BYTES
        if len(stored.values) != value_bytes or len(stored.scales) != scale_bytes:
            raise Internal(
                f"shard {shard} returned {len(stored.values)} bytes of values and "
                f"{len(stored.scales)} of scales for {count} rows of {', '.join(layout.names)}; "
                f"{value_bytes} and {scale_bytes} were expected"
            )

        # Rows travel as they are stored, and the code of a single process widens them, so that they
        # equal the rows of a single process bit for bit.
        values = np.frombuffer(stored.values, STORED[layout.dtype]).reshape(-1, layout.dim)
        scales = None
        if stored.scales:
            scales = np.frombuffer(stored.scales, "<f4")
        return widened(values, layout.dtype, scales)
