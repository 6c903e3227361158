"""One version of a model on the shards: which rows and partitions are where, read by compute threads that wait."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bundle.features.sources import FetchedRows
from bundle.format.dtypes import STORED, widened
from bundle.format.manifest import Manifest
from bundle.tables import sharding
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

    def __init__(self, shards: Asking, manifest: Manifest, key: Key, settings: ServiceSettings) -> None:
        """Derives what is sharded; `divide` says among how many shards."""
        self._shards, self.key, self._timeout_s = shards, key, settings.request_timeout_s
        self._tables = sharding.sharded_tables(manifest, settings.shard_least_bytes)
        self._indexes = sharding.sharded_indexes(manifest)
        self._sizes = {name: manifest.candidates[index.corpus].size for name, index in self._indexes.items()}
        self._bundle = parts.bundle_message(Target(key[0], key[1]), key[2])
        self.divide(1)

    @property
    def is_needed(self) -> bool:
        """Whether shards hold anything of it."""
        return bool(self._tables or self._indexes)

    def divide(self, total: int) -> None:
        """Derives which of so many shards holds what."""
        self.total = total
        self._starts = {name: _starts_of(table.rows, total) for name, table in self._tables.items()}
        self._index_starts = {}
        for name, index in self._indexes.items():
            size = self._sizes[name]
            starts = _starts_of(index.partitions, total) * -(-size // index.partitions)
            self._index_starts[name] = np.minimum(starts, size)

    def held_by(self, shard: ShardNumber) -> dict[str, list[int]]:
        """Returns the first row, or candidate, that a shard holds, and the end, by table and index."""
        starts = {f"tables.{name}": each for name, each in self._starts.items()}
        starts |= {f"indexes.{name}": each for name, each in self._index_starts.items()}
        return {name: each[shard.number - 1 : shard.number + 1].tolist() for name, each in starts.items()}

    def rows(self, tables: Mapping[str, Rows], left_s: float) -> dict[str, FetchedRows]:
        """See RemoteParts."""
        found: dict[str, FetchedRows] = {}
        wanted = {name: self._split(rows, self._starts[name]) for name, rows in tables.items()}
        vectors = {name: np.zeros((rows.size, self._tables[name].dim), np.float32) for name, rows in tables.items()}
        lost: dict[str, NDArray[np.bool_]] = {}
        for number, answer in self._fetch(wanted, False, left_s).items():
            asked = [name for name in wanted if number in wanted[name]]
            for place, name in enumerate(asked):
                table, (where, positions) = self._tables[name], wanted[name][number]
                if isinstance(answer, ServiceError):
                    if answer.code is not Code.NOT_READY or table.unavailable == "error":
                        raise answer
                    lost.setdefault(name, np.zeros(tables[name].size, bool))[where] = True
                    continue
                stored = answer.rows[place]
                values = np.frombuffer(stored.values, np.uint8).reshape(positions.size, table.row_bytes)
                scales = np.frombuffer(stored.scales, "<f4") if stored.scales else None
                vectors[name][where] = widened(values.view(STORED[table.dtype]), table.dtype, scales)
        for name, rows in tables.items():
            found[name] = FetchedRows(rows, vectors[name], lost.get(name))
        return found

    def vectors(self, index: str, positions: Rows, left_s: float) -> NDArray[np.float32]:
        """See RemoteParts."""
        distinct, inverse = np.unique(positions, return_inverse=True)
        wanted = {index: self._split(distinct, self._index_starts[index])}
        vectors = np.empty((distinct.size, self._indexes[index].dim), np.float32)
        for number, answer in self._fetch(wanted, True, left_s).items():
            if isinstance(answer, ServiceError):
                raise answer
            where, _ = wanted[index][number]
            vectors[where] = np.frombuffer(answer.rows[0].values, "<f4").reshape(-1, vectors.shape[1])
        return vectors[inverse]

    def search(self, left_s: float, **search: Any) -> Sequence[PartFound]:
        """See RemoteParts."""
        target = Target(self.key[0], self.key[1])
        message = parts.search_message(PartSearch(target, fingerprint=self.key[2], **search))
        starts = self._index_starts[search["index"]]
        numbers = [number for number in range(1, self.total + 1) if starts[number] > starts[number - 1]]
        answers = self._ask(dict.fromkeys(numbers, message), "Search", left_s)
        for answer in answers.values():
            if isinstance(answer, ServiceError):
                raise answer
        return [parts.read_found(answer, target) for answer in answers.values()]

    def _fetch(
        self, wanted: Mapping[str, Mapping[int, tuple[slice, Rows]]], is_index: bool, left_s: float
    ) -> dict[int, Any]:
        """Asks each shard for all of its rows at once; returns answers, or why there is none, by shard."""
        requests: dict[int, shard_pb.RowsRequest] = {}
        for name, by_shard in wanted.items():
            for number, (_, positions) in by_shard.items():
                request = requests.setdefault(number, shard_pb.RowsRequest(bundle=self._bundle))
                source = {"index": name} if is_index else {"table": name}
                request.rows.append(shard_pb.Rows(positions=positions.astype("<u4").tobytes(), **source))
        return self._ask(requests, "Rows", left_s)

    def _ask(self, requests: Mapping[int, Any], method: str, left_s: float) -> dict[int, Any]:
        left_s = min(left_s, self._timeout_s)

        async def ask_all() -> list[Any]:
            calls = [
                self._shards.ask(self.key, ShardNumber(number, self.total), method, request, left_s)
                for number, request in requests.items()
            ]
            return await asyncio.gather(*calls, return_exceptions=True)

        answers = asyncio.run_coroutine_threadsafe(ask_all(), self._shards.loop).result()
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, ServiceError):
                raise Internal(str(answer)) from answer
        return dict(zip(requests, answers, strict=True))

    @staticmethod
    def _split(rows: Rows, starts: Rows) -> dict[int, tuple[slice, Rows]]:
        """Returns where among ascending rows those of each shard lie, and their positions there."""
        ends = rows.searchsorted(starts)
        return {
            number + 1: (slice(first, end), rows[first:end] - starts[number])
            for number, (first, end) in enumerate(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True))
            if end > first
        }


def _starts_of(rows: int, total: int) -> Rows:
    """Returns the first row of each shard, then the number of rows."""
    shards = (ShardNumber(number, total) for number in range(1, total + 1))
    return np.array([*(sharding.row_range(rows, each).first for each in shards), rows])
