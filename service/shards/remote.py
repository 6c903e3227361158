"""One version of a model on the shards: which rows and partitions are where, read by compute threads that wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.features.sources import FetchedRows, RemoteTable, remote_tables
from bundle.format.dtypes import STORED, widened
from bundle.format.manifest import Manifest, Table
from bundle.tables import sharding
from bundle.tables.id_values import distinct
from bundle.tables.sharding import ShardNumber
from service.codec import parts
from service.codec.stubs import shard_service_pb2 as shard_pb
from service.engine.search import Found
from service.engine.shard_requests import IndexSearch
from service.errors import Code, ServiceError
from service.shards.replica import Key

Rows = NDArray[np.int64]
CallAll = Callable[[Key, str, Mapping[ShardNumber, Any], float], Mapping[ShardNumber, Any]]
"""Calls a method of several shards at once, and waits: an answer of each, or the ServiceError with which it failed."""


class RemoteVersion:
    """Reaches the shards of one version; called by compute threads, which wait."""

    def __init__(
        self, call_all: CallAll, manifest: Manifest, key: Key, total: int, least_bytes: int
    ) -> None:
        """Derives what each of `total` shards holds."""
        self.key, self._call_all = key, call_all
        self._numbers = [ShardNumber(each, total) for each in range(1, total + 1)]
        tables = sharding.sharded_tables(manifest, least_bytes)
        self.tables: Mapping[str, RemoteTable] = remote_tables(tables)
        self._starts = {
            f"tables.{name}": self._starts_of(table.rows) for name, table in tables.items()
        }
        self._layouts = self._layouts_of(tables)
        self._indexes: dict[str, _Layout] = {}
        for name, index in sharding.sharded_indexes(manifest).items():
            size, partitions = manifest.candidates[index.corpus].size, index.partitions
            bounds = np.minimum(self._starts_of(partitions) * -(-size // partitions), size)
            self._starts[f"indexes.{name}"] = bounds
            self._indexes[name] = _Layout(
                [name], bounds, "float32", index.dim, [True], is_index=True
            )

    def _layouts_of(self, tables: Mapping[str, Table]) -> dict[str, _Layout]:
        members: dict[str, list[str]] = {}
        for name, each in self.tables.items():
            members.setdefault(each.among.name, []).append(name)
        layouts = {}
        for layout, names in members.items():
            starts = [
                self.tables[name].first + self._starts[f"tables.{name}"][:-1] for name in names
            ]
            one, last = tables[names[0]], self.tables[names[-1]]
            bounds = np.array([*np.concatenate(starts), last.first + last.rows])
            refusing = [tables[name].unavailable == "error" for name in names]
            layouts[layout] = _Layout(names, bounds, one.dtype, one.dim, refusing)
        return layouts

    def held_by(self, shard: ShardNumber) -> dict[str, list[int]]:
        """Returns the first row, or candidate, that a shard holds, and the end, by table and index."""
        return {
            name: starts[shard.number - 1 : shard.number + 1].tolist()
            for name, starts in self._starts.items()
        }

    def rows(self, wanted: Mapping[str, Rows], left_s: float) -> dict[str, FetchedRows]:
        """See RemoteParts."""
        return self._read(
            {layout: _Divided(self._layouts[layout], rows) for layout, rows in wanted.items()},
            left_s,
        )

    def vectors(self, index: str, positions: Rows, left_s: float) -> NDArray[np.float32]:
        """See RemoteParts."""
        divided = {index: _Divided(self._indexes[index], distinct(positions))}
        return self._read(divided, left_s)[index].take(positions)

    def search(self, wanted: IndexSearch, left_s: float) -> list[Found]:
        """See RemoteParts."""
        requests = {}
        for shard, count in zip(
            self._numbers, np.diff(self._indexes[wanted.index].bounds), strict=True
        ):
            if count:
                requests[shard] = parts.search_message(self._bundle(shard), wanted)
        answers = self._call_all(self.key, "Search", requests, left_s)
        for answer in answers.values():
            if isinstance(answer, ServiceError):
                raise answer
        return [parts.read_found(answer) for answer in answers.values()]

    def _read(self, divided: Mapping[str, _Divided], left_s: float) -> dict[str, FetchedRows]:
        """Reads all rows of each shard in one call."""
        held = {
            shard: [each for each in divided.values() if each.held(shard)]
            for shard in self._numbers
        }
        requests = {
            shard: shard_pb.RowsRequest(
                bundle=self._bundle(shard), rows=[each.message(shard) for each in some]
            )
            for shard, some in held.items()
            if some
        }
        for shard, answer in self._call_all(self.key, "Rows", requests, left_s).items():
            for place, each in enumerate(held[shard]):
                if isinstance(answer, ServiceError):
                    each.lose(shard, answer)
                else:
                    each.receive(shard, answer.rows[place])
        return {name: each.fetched() for name, each in divided.items()}

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
        return np.array([*(sharding.row_range(rows, shard).first for shard in self._numbers), rows])


@dataclass(frozen=True)
class _Layout:
    """Rows that are read together, end to end: of all sharded tables of one row layout, or of one index.

    Attributes:
      bounds: first row of each shard in each table, and the end.
      refusing: of each table, whether a lookup fails where its shard cannot be reached.
    """

    names: Sequence[str]
    bounds: Rows
    dtype: str
    dim: int
    refusing: Sequence[bool]
    is_index: bool = False


class _Divided:
    """Distinct ascending rows of a layout, divided among the shards that hold them, and what those answer."""

    def __init__(self, layout: _Layout, rows: Rows) -> None:
        self._layout, self._rows = layout, rows
        counts = np.diff(rows.searchsorted(layout.bounds))
        self._counts = counts.reshape(len(layout.names), -1)  # of each table at each shard
        self._owners = np.tile(np.arange(1, self._counts.shape[1] + 1), len(layout.names)).repeat(
            counts
        )
        self._positions = (rows - layout.bounds[:-1].repeat(counts)).astype("<u4")
        self._vectors = np.empty((rows.size, layout.dim), np.float32)
        self._lost: NDArray[np.bool_] | None = None
        self._lost_by_table = Counter[str]()

    def held(self, shard: ShardNumber) -> dict[str, int]:
        """Returns how many rows of each table a shard holds, of those where it holds any."""
        counts = self._counts[:, shard.number - 1].tolist()
        return {
            name: count for name, count in zip(self._layout.names, counts, strict=True) if count
        }

    def message(self, shard: ShardNumber) -> shard_pb.Rows:
        """Returns the part of a request to a shard that is for rows of this layout."""
        positions, held = self._positions[self._owners == shard.number].tobytes(), self.held(shard)
        if self._layout.is_index:
            return shard_pb.Rows(index=self._layout.names[0], positions=positions)
        counts = np.array([*held.values()], "<u4").tobytes()
        return shard_pb.Rows(tables=[*held], counts=counts, positions=positions)

    def receive(self, shard: ShardNumber, stored: shard_pb.StoredRows) -> None:
        """Takes the rows of a shard."""
        layout = self._layout
        values = np.frombuffer(stored.values, STORED[layout.dtype]).reshape(-1, layout.dim)
        scales = np.frombuffer(stored.scales, "<f4") if stored.scales else None
        self._vectors[self._owners == shard.number] = widened(values, layout.dtype, scales)

    def lose(self, shard: ShardNumber, problem: ServiceError) -> None:
        """Has zeros for the rows of a shard that cannot be reached; raises the problem if that is not allowed."""
        held = self.held(shard)
        refusing = {
            name
            for name, refuses in zip(self._layout.names, self._layout.refusing, strict=True)
            if refuses
        }
        if problem.code is not Code.NOT_READY or not refusing.isdisjoint(held):
            raise problem
        lost = self._owners == shard.number
        self._lost = lost if self._lost is None else self._lost | lost
        self._vectors[lost] = 0
        self._lost_by_table.update(held)

    def fetched(self) -> FetchedRows:
        """Returns what was received."""
        return FetchedRows(self._rows, self._vectors, self._lost, self._lost_by_table)
