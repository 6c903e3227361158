"""One version of a model on the shards: which shard holds which rows and partitions, and reading
them. Its methods are parts of computations, which await the calls of shards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.arithmetic import ceil_div
from bundle.features.sources import FetchedRows, RemoteTable, remote_tables
from bundle.format.dtypes import SCALE_BYTES, STORED, widened
from bundle.format.manifest import Manifest, Table
from bundle.tables import sharding
from bundle.tables.id_values import distinct
from bundle.tables.sharding import ShardNumber
from service.codec.stubs import shard_service_pb2 as shard_pb
from service.engine.retrieval.search import Found
from service.engine.retrieval.sharded_search import IndexSearch
from service.errors import Code, Internal, ServiceError
from service.shards import messages
from service.shards.replica import Key

Rows = NDArray[np.int64]
Responses = Mapping[ShardNumber, Any]
"""The response of each shard, or the ServiceError with which its call failed."""
CallAll = Callable[[Key, str, Mapping[ShardNumber, Any], float], Awaitable[Responses]]
"""Calls a method of several shards in parallel."""


class RemoteVersion:
    """Reads from the shards of one version. Implements RemoteParts."""

    def __init__(
        self, call_all: CallAll, manifest: Manifest, key: Key, total: int, min_bytes: int
    ) -> None:
        """Derives what each shard holds.

        Args:
          call_all: Calls the shards.
          manifest: The manifest of the whole bundle.
          key: Identifies the version on the shards.
          total: The number of shards.
          min_bytes: The size from which tables are divided among the shards.
        """
        self.key = key
        self._call_all = call_all
        self._shards = [ShardNumber(number, total) for number in range(1, total + 1)]

        tables = sharding.sharded_tables(manifest, min_bytes)
        self.tables: Mapping[str, RemoteTable] = remote_tables(tables)
        self._starts = {
            f"tables.{name}": self._starts_of(table.rows) for name, table in tables.items()
        }
        self._layouts = self._layouts_of(tables)

        self._indexes: dict[str, _Layout] = {}
        for name, index in sharding.sharded_indexes(manifest).items():
            size = manifest.corpora[index.corpus].size
            partition_rows = ceil_div(size, index.partitions)
            bounds = np.minimum(self._starts_of(index.partitions) * partition_rows, size)
            self._starts[f"indexes.{name}"] = bounds
            self._indexes[name] = _Layout(
                [name], bounds, "float32", index.dim, [True], is_index=True
            )

    def held_by(self, shard: ShardNumber) -> dict[str, list[int]]:
        """Returns which rows of each table, and which candidates of each index, a shard holds.

        Returns:
          By name of the table or index, the first row or candidate, and the one after the last.
        """
        return {
            name: starts[shard.number - 1 : shard.number + 1].tolist()
            for name, starts in self._starts.items()
        }

    async def rows(self, wanted: Mapping[str, Rows], left_s: float) -> dict[str, FetchedRows]:
        """Reads rows from the shards. Implements RemoteParts.rows."""
        reads = {layout: _Read(self._layouts[layout], rows) for layout, rows in wanted.items()}
        return await self._execute(reads, left_s)

    async def vectors(self, index: str, positions: Rows, left_s: float) -> NDArray[np.float32]:
        """Reads vectors of an index from the shards. Implements RemoteParts.vectors."""
        reads = {index: _Read(self._indexes[index], distinct(positions))}
        fetched = await self._execute(reads, left_s)
        return fetched[index].take(positions)

    async def search(self, wanted: IndexSearch, left_s: float) -> list[Found]:
        """Searches the partitions of every shard that has any. Implements RemoteParts.search."""
        bounds = self._indexes[wanted.index].bounds
        requests = {
            shard: messages.search_message(self._bundle(shard), wanted)
            for shard, count in zip(self._shards, np.diff(bounds), strict=True)
            if count
        }
        responses = await self._call_all(self.key, "Search", requests, left_s)

        found = []
        for shard, response in responses.items():
            if isinstance(response, ServiceError):
                raise response
            first, end = bounds[shard.number - 1 : shard.number + 1].tolist()
            found.append(messages.read_found(response, wanted, range(first, end), shard))
        return found

    async def _execute(self, reads: Mapping[str, _Read], left_s: float) -> dict[str, FetchedRows]:
        """Reads all rows, with one call per shard whatever the number of tables: a call costs more
        than the rows it carries.
        """
        reads_by_shard: dict[ShardNumber, list[_Read]] = {}
        for shard in self._shards:
            held = [read for read in reads.values() if read.counts_on(shard)]
            if held:
                reads_by_shard[shard] = held

        requests = {
            shard: shard_pb.RowsRequest(
                bundle=self._bundle(shard), rows=[read.message(shard) for read in held]
            )
            for shard, held in reads_by_shard.items()
        }
        responses = await self._call_all(self.key, "Rows", requests, left_s)

        for shard, response in responses.items():
            if isinstance(response, ServiceError):
                for read in reads_by_shard[shard]:
                    read.mark_unavailable(shard, response)
                continue
            held = reads_by_shard[shard]
            if len(response.rows) != len(held):
                raise Internal(
                    f"shard {shard} returned rows of {len(response.rows)} layouts; "
                    f"{len(held)} were requested"
                )
            for read, stored in zip(held, response.rows, strict=True):
                read.store(shard, stored)
        return {name: read.fetched() for name, read in reads.items()}

    def _layouts_of(self, tables: Mapping[str, Table]) -> dict[str, _Layout]:
        """Joins the tables whose rows can travel in one message."""
        names_by_layout: dict[str, list[str]] = {}
        for name, table in self.tables.items():
            names_by_layout.setdefault(table.among.name, []).append(name)

        layouts = {}
        for layout, names in names_by_layout.items():
            starts = [
                self.tables[name].first + self._starts[f"tables.{name}"][:-1] for name in names
            ]
            last_table = self.tables[names[-1]]
            bounds = np.array([*np.concatenate(starts), last_table.first + last_table.rows])
            required = [tables[name].unavailable == "error" for name in names]
            entry = tables[names[0]]
            layouts[layout] = _Layout(names, bounds, entry.dtype, entry.dim, required)
        return layouts

    def _bundle(self, shard: ShardNumber) -> shard_pb.Bundle:
        model, version, fingerprint = self.key
        return shard_pb.Bundle(
            model=model,
            version=version,
            fingerprint=fingerprint,
            number=shard.number,
            total=shard.total,
        )

    def _starts_of(self, rows: int) -> Rows:
        """Returns the first row of each shard, then the number of rows."""
        return np.array([*(sharding.row_range(rows, shard).first for shard in self._shards), rows])


@dataclass(frozen=True)
class _Layout:
    """Rows that are read together, end to end: those of all sharded tables of one row layout, or
    the vectors of one index.

    Attributes:
      names: The tables, in the order of their rows; or the index.
      bounds: The first row of each shard in each table, then the number of rows.
      dtype: The dtype of the stored rows.
      dim: The number of values per row.
      required: For each table, whether a lookup fails if a shard that holds its rows is
        unavailable.
      is_index: Whether these are the vectors of an index.
    """

    names: Sequence[str]
    bounds: Rows
    dtype: str
    dim: int
    required: Sequence[bool]
    is_index: bool = False


class _Read:
    """Reads distinct ascending rows of one layout from the shards that hold them."""

    def __init__(self, layout: _Layout, rows: Rows) -> None:
        self._layout = layout
        self._rows = rows
        counts = np.diff(rows.searchsorted(layout.bounds))
        self._counts = counts.reshape(len(layout.names), -1)
        """[tables, shards] number of rows."""
        shard_count = self._counts.shape[1]
        shard_numbers = np.tile(np.arange(1, shard_count + 1), len(layout.names))
        self._owners = shard_numbers.repeat(counts)
        """[rows] number of the shard that holds each row."""
        self._positions = (rows - layout.bounds[:-1].repeat(counts)).astype("<u4")
        """[rows] position of each row among those of its table on its shard."""
        self._vectors = np.empty((rows.size, layout.dim), np.float32)
        self._unavailable: NDArray[np.bool_] | None = None
        self._unavailable_by_table = Counter[str]()

    def counts_on(self, shard: ShardNumber) -> dict[str, int]:
        """Returns how many of the rows a shard holds, by table; tables without any are left out."""
        counts = self._counts[:, shard.number - 1].tolist()
        return {
            name: count for name, count in zip(self._layout.names, counts, strict=True) if count
        }

    def message(self, shard: ShardNumber) -> shard_pb.Rows:
        """Returns the part of a shard's request that is for rows of this layout."""
        positions = self._positions[self._owners == shard.number].tobytes()
        if self._layout.is_index:
            return shard_pb.Rows(index=self._layout.names[0], positions=positions)
        counts = self.counts_on(shard)
        return shard_pb.Rows(
            tables=list(counts),
            counts=np.array(list(counts.values()), "<u4").tobytes(),
            positions=positions,
        )

    def store(self, shard: ShardNumber, stored: shard_pb.StoredRows) -> None:
        """Stores the rows that a shard returned.

        Raises:
          Internal: They are not the rows that were requested, by their sizes.
        """
        layout = self._layout
        rows = self._owners == shard.number
        count = int(np.count_nonzero(rows))
        value_bytes = count * layout.dim * STORED[layout.dtype].itemsize
        scale_bytes = count * SCALE_BYTES if layout.dtype == "int8" else 0
        if len(stored.values) != value_bytes or len(stored.scales) != scale_bytes:
            raise Internal(
                f"shard {shard} returned {len(stored.values)} bytes of values and "
                f"{len(stored.scales)} of scales for {count} rows of {', '.join(layout.names)}; "
                f"{value_bytes} and {scale_bytes} were expected"
            )

        values = np.frombuffer(stored.values, STORED[layout.dtype]).reshape(-1, layout.dim)
        scales = np.frombuffer(stored.scales, "<f4") if stored.scales else None
        self._vectors[rows] = widened(values, layout.dtype, scales)

    def mark_unavailable(self, shard: ShardNumber, problem: ServiceError) -> None:
        """Replaces the rows of a shard by zeros, if the `unavailable` rule of every table allows
        it.

        Raises:
          ServiceError: The shard could be reached and failed, or a table is required.
        """
        counts = self.counts_on(shard)
        required = {
            name
            for name, is_required in zip(self._layout.names, self._layout.required, strict=True)
            if is_required
        }
        if problem.code is not Code.NOT_READY or not required.isdisjoint(counts):
            raise problem

        rows = self._owners == shard.number
        self._unavailable = rows if self._unavailable is None else self._unavailable | rows
        self._vectors[rows] = 0
        self._unavailable_by_table.update(counts)

    def fetched(self) -> FetchedRows:
        """Returns the rows."""
        return FetchedRows(self._rows, self._vectors, self._unavailable, self._unavailable_by_table)
