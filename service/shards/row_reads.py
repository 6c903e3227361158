"""Reading rows of one layout from the shards that hold them: what each call requests, and how the
responses are put together.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bundle.features.sources import FetchedRows
from bundle.format.dtypes import SCALE_BYTES, STORED, row_bytes, widened
from bundle.tables.sharding import ShardNumber
from service.codec.stubs import shard_service_pb2 as shard_pb
from service.errors import Code, Internal, ServiceError
from service.shards.division import Layout, Rows
from service.shards.messages import LIST_BYTES


class Read:
    """Reads distinct ascending rows of one layout from the shards that hold them."""

    def __init__(self, layout: Layout, rows: Rows) -> None:
        self.layout = layout
        self._rows = rows
        counts = np.diff(rows.searchsorted(layout.bounds))
        shard_count = counts.size // len(layout.names)
        self._owners = np.tile(np.arange(1, shard_count + 1), len(layout.names)).repeat(counts)
        """[rows] number of the shard that holds each row."""
        self.tables = np.arange(len(layout.names)).repeat(shard_count).repeat(counts)
        """[rows] number of the table of each row."""
        self.positions = (rows - layout.bounds[:-1].repeat(counts)).astype("<u4")
        """[rows] position of each row among those of its table on its shard."""
        self._vectors = np.empty((rows.size, layout.dim), np.float32)
        self._unavailable: NDArray[np.bool_] | None = None
        self._unavailable_by_table = Counter[str]()

    def slice_on(self, shard: ShardNumber) -> Slice:
        """Returns the rows that a shard holds."""
        return Slice(self, np.flatnonzero(self._owners == shard.number))

    def store(self, part: Slice, vectors: NDArray[np.float32]) -> None:
        """Stores rows that a shard returned."""
        self._vectors[part.rows] = vectors

    def mark_unavailable(self, part: Slice, problem: ServiceError) -> None:
        """Replaces rows of a shard by zeros, if the `unavailable` rule of every table allows it.

        Raises:
          ServiceError: The shard could be reached and failed, or a table is required.
        """
        counts = part.counts
        required = {
            name
            for name, is_required in zip(self.layout.names, self.layout.required, strict=True)
            if is_required
        }
        if problem.code is not Code.NOT_READY or not required.isdisjoint(counts):
            raise problem

        if self._unavailable is None:
            self._unavailable = np.zeros(self._rows.size, np.bool_)
        self._unavailable[part.rows] = True
        self._vectors[part.rows] = 0
        self._unavailable_by_table.update(counts)

    def fetched(self) -> FetchedRows:
        """Returns the rows."""
        return FetchedRows(self._rows, self._vectors, self._unavailable, self._unavailable_by_table)


@dataclass(frozen=True)
class Slice:
    """Rows of one layout that one call reads from a shard.

    Attributes:
      read: The read that they belong to.
      rows: [n] ascending: which of its rows they are.
    """

    read: Read
    rows: Rows

    @property
    def counts(self) -> dict[str, int]:
        """How many of the rows each table has; tables without any are left out."""
        names = self.read.layout.names
        counts = np.bincount(self.read.tables[self.rows], minlength=len(names)).tolist()
        return {name: count for name, count in zip(names, counts, strict=True) if count}

    @property
    def response_bytes(self) -> int:
        """The size of the rows as they are returned."""
        return self.rows.size * self.read.layout.row_bytes

    @property
    def request_bytes(self) -> int:
        """The size of the positions as they are requested."""
        return 4 * self.rows.size + LIST_BYTES * len(self.read.layout.names)

    def pieces(self, response_bytes: int, request_bytes: int) -> list[Slice]:
        """Divides the rows into pieces whose messages have at most so many bytes."""
        room = request_bytes - LIST_BYTES * len(self.read.layout.names)
        rows_max = max(1, min(response_bytes // self.read.layout.row_bytes, room // 4))
        ends = range(rows_max, self.rows.size, rows_max)
        return [Slice(self.read, rows) for rows in np.split(self.rows, ends)]

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
        """Returns the rows that a shard returned.

        Raises:
          Internal: They are not the rows that were requested, by their sizes.
        """
        layout = self.read.layout
        count = self.rows.size
        value_bytes = count * row_bytes(layout.dtype, layout.dim)
        scale_bytes = count * SCALE_BYTES if layout.dtype == "int8" else 0
        if len(stored.values) != value_bytes or len(stored.scales) != scale_bytes:
            raise Internal(
                f"shard {shard} returned {len(stored.values)} bytes of values and "
                f"{len(stored.scales)} of scales for {count} rows of {', '.join(layout.names)}; "
                f"{value_bytes} and {scale_bytes} were expected"
            )
        values = np.frombuffer(stored.values, STORED[layout.dtype]).reshape(-1, layout.dim)
        scales = np.frombuffer(stored.scales, "<f4") if stored.scales else None
        return widened(values, layout.dtype, scales)
