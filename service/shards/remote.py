"""One version of a model on the shards: which rows and partitions are where, read by compute threads that wait."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bundle.features.sources import FetchedRows, RemoteTable, remote_tables
from bundle.format.dtypes import STORED, widened
from bundle.format.manifest import Manifest, Table
from bundle.tables import sharding
from bundle.tables.offsets import offsets_of
from bundle.tables.sharding import ShardNumber
from service.codec import parts
from service.codec.stubs import shard_service_pb2 as shard_pb
from service.config import ServiceSettings
from service.engine.requests import PartFound, PartSearch, Target
from service.errors import Code, Internal, ServiceError
from service.shards.replica import Key

Rows = NDArray[np.int64]


class Asking(Protocol):
    """What asks shards, on its event loop."""

    loop: asyncio.AbstractEventLoop

    async def ask(self, key: Key, shard: ShardNumber, method: str, request: Any, left_s: float) -> Any:
        """Calls a method of a shard; raises ServiceError."""


class RemoteVersion:
    """Reaches the shards of one version; called by compute threads, which wait."""

    def __init__(self, shards: Asking, manifest: Manifest, key: Key, total: int, settings: ServiceSettings) -> None:
        """Derives what each of `total` shards holds."""
        self._shards, self.key, self._total, self._timeout_s = shards, key, total, settings.request_timeout_s
        sharded = sharding.sharded_tables(manifest, settings.shard_least_bytes)
        self.tables: Mapping[str, RemoteTable] = remote_tables(sharded)
        self._row_starts = {name: _starts(table.rows, total) for name, table in sharded.items()}
        layouts = dict.fromkeys(each.among.name for each in self.tables.values())
        self._layouts = {
            layout: _Layout([name for name, each in self.tables.items() if each.among.name == layout], sharded, total)
            for layout in layouts
        }
        self._indexes = sharding.sharded_indexes(manifest)
        self._index_starts: dict[str, Rows] = {}
        for name, index in self._indexes.items():
            size, partitions = manifest.candidates[index.corpus].size, index.partitions
            self._index_starts[name] = np.minimum(_starts(partitions, total) * -(-size // partitions), size)

    def held_by(self, shard: ShardNumber) -> dict[str, list[int]]:
        """Returns the first row, or candidate, that a shard holds, and the end, by table and index."""
        starts = {f"tables.{name}": each for name, each in self._row_starts.items()}
        starts |= {f"indexes.{name}": each for name, each in self._index_starts.items()}
        return {name: each[shard.number - 1 : shard.number + 1].tolist() for name, each in starts.items()}

    def rows(self, wanted: Mapping[str, Rows], left_s: float) -> dict[str, FetchedRows]:
        """See RemoteParts."""
        divided = {layout: _Divided(self._layouts[layout], rows) for layout, rows in wanted.items()}
        asked: dict[int, list[str]] = {}
        for layout, each in divided.items():
            for number in each.numbers:
                asked.setdefault(number, []).append(layout)
        requests = {
            number: shard_pb.RowsRequest(
                bundle=self._bundle(number), rows=[divided[layout].message(number) for layout in layouts]
            )
            for number, layouts in asked.items()
        }
        answers = self._ask(requests, "Rows", left_s)
        for number, layouts in asked.items():
            answer = answers[number]
            for place, layout in enumerate(layouts):
                if isinstance(answer, ServiceError):
                    divided[layout].lose(number, answer)
                else:
                    divided[layout].receive(number, answer.rows[place])
        return {layout: each.fetched() for layout, each in divided.items()}

    def vectors(self, index: str, positions: Rows, left_s: float) -> NDArray[np.float32]:
        """See RemoteParts."""
        distinct, inverse = np.unique(positions, return_inverse=True)
        starts = self._index_starts[index]
        ends = distinct.searchsorted(starts).tolist()
        held = {number: slice(*each) for number, each in enumerate(pairwise(ends), 1) if each[0] < each[1]}
        requests = {}
        for number, where in held.items():
            own = shard_pb.Rows(index=index, positions=(distinct[where] - starts[number - 1]).astype("<u4").tobytes())
            requests[number] = shard_pb.RowsRequest(bundle=self._bundle(number), rows=[own])
        vectors = np.empty((distinct.size, self._indexes[index].dim), np.float32)
        for number, answer in self._ask(requests, "Rows", left_s).items():
            if isinstance(answer, ServiceError):
                raise answer
            vectors[held[number]] = np.frombuffer(answer.rows[0].values, "<f4").reshape(-1, vectors.shape[1])
        return vectors[inverse]

    def search(self, left_s: float, **search: Any) -> Sequence[PartFound]:
        """See RemoteParts."""
        target = Target(self.key[0], self.key[1])
        numbers = np.flatnonzero(np.diff(self._index_starts[search["index"]])) + 1
        messages = {
            number: parts.search_message(
                PartSearch(target, fingerprint=self.key[2], shard=ShardNumber(number, self._total), **search)
            )
            for number in numbers.tolist()
        }
        answers = self._ask(messages, "Search", left_s)
        for answer in answers.values():
            if isinstance(answer, ServiceError):
                raise answer
        return [parts.read_found(answer, target) for answer in answers.values()]

    def _ask(self, requests: Mapping[int, Any], method: str, left_s: float) -> dict[int, Any]:
        left_s = min(left_s, self._timeout_s)

        async def ask_all() -> list[Any]:
            calls = [
                self._shards.ask(self.key, ShardNumber(number, self._total), method, request, left_s)
                for number, request in requests.items()
            ]
            return await asyncio.gather(*calls, return_exceptions=True)

        answers = asyncio.run_coroutine_threadsafe(ask_all(), self._shards.loop).result()
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, ServiceError):
                raise Internal(str(answer)) from answer
        return dict(zip(requests, answers, strict=True))

    def _bundle(self, number: int) -> shard_pb.Bundle:
        model, version, fingerprint = self.key
        return parts.bundle_message(Target(model, version), fingerprint, ShardNumber(number, self._total))


def _starts(rows: int, total: int) -> Rows:
    """Returns the first row of each shard, then the number of rows."""
    numbers = (ShardNumber(number, total) for number in range(1, total + 1))
    return np.array([*(sharding.row_range(rows, each).first for each in numbers), rows])


class _Layout:
    """The rows of all sharded tables of one row layout, end to end, and which shard holds which."""

    def __init__(self, names: Sequence[str], tables: Mapping[str, Table], total: int) -> None:
        self.names, self.total, self.table = names, total, tables[names[0]]
        self.refusing = [tables[name].unavailable == "error" for name in names]
        sizes = [tables[name].rows for name in names]
        firsts = offsets_of(sizes)
        starts = [first + _starts(size, total)[:-1] for first, size in zip(firsts, sizes, strict=False)]
        self.bounds = np.concatenate([*starts, firsts[-1:]])
        """First row of each shard in each table, and the end."""


class _Divided:
    """Distinct ascending rows of a layout, divided among the shards that hold them, and what those answer.

    Attributes:
      numbers: of these shards.
    """

    def __init__(self, layout: _Layout, rows: Rows) -> None:
        self._layout, self._rows, total = layout, rows, layout.total
        counts = np.diff(rows.searchsorted(layout.bounds))
        self._counts = counts.reshape(-1, total)  # of each table at each shard
        self._owners = np.tile(np.arange(1, total + 1), len(self._counts)).repeat(counts)
        self._positions = (rows - layout.bounds[:-1].repeat(counts)).astype("<u4")
        self._vectors = np.empty((rows.size, layout.table.dim), np.float32)
        self._lost: NDArray[np.bool_] | None = None
        self._lost_by_table = Counter[str]()
        self.numbers: list[int] = (np.flatnonzero(self._counts.any(axis=0)) + 1).tolist()

    def message(self, number: int) -> shard_pb.Rows:
        """Returns what asks a shard for the rows that it holds."""
        counts = self._counts[:, number - 1]
        return shard_pb.Rows(
            tables=[name for name, count in zip(self._layout.names, counts.tolist(), strict=True) if count],
            counts=counts[counts > 0].astype("<u4").tobytes(),
            positions=self._positions[self._owners == number].tobytes(),
        )

    def receive(self, number: int, stored: shard_pb.StoredRows) -> None:
        """Takes the rows of a shard."""
        table = self._layout.table
        values = np.frombuffer(stored.values, STORED[table.dtype]).reshape(-1, table.dim)
        scales = np.frombuffer(stored.scales, "<f4") if stored.scales else None
        self._vectors[self._owners == number] = widened(values, table.dtype, scales)

    def lose(self, number: int, problem: ServiceError) -> None:
        """Has zeros for the rows of a shard that cannot be reached; raises the problem if that is not allowed."""
        counts = dict(zip(self._layout.names, self._counts[:, number - 1].tolist(), strict=True))
        refused = any(count and no for count, no in zip(counts.values(), self._layout.refusing, strict=True))
        if problem.code is not Code.NOT_READY or refused:
            raise problem
        self._lost = np.zeros(self._rows.size, bool) if self._lost is None else self._lost
        self._lost |= self._owners == number
        self._vectors[self._owners == number] = 0
        self._lost_by_table += Counter(counts)

    def fetched(self) -> FetchedRows:
        """Returns what was received."""
        return FetchedRows(self._rows, self._vectors, self._lost, self._lost_by_table)
