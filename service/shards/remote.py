"""One version of a model on the shards: which rows and partitions are where, read by compute threads that wait."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import pairwise
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

    def __init__(self, shards: Asking, manifest: Manifest, key: Key, total: int, settings: ServiceSettings) -> None:
        """Derives what each of `total` shards holds."""
        self._shards, self.key, self._total, self._timeout_s = shards, key, total, settings.request_timeout_s
        self._tables = sharding.sharded_tables(manifest, settings.shard_least_bytes)
        self._indexes = sharding.sharded_indexes(manifest)
        self._row_starts = {name: _starts(table.rows, total) for name, table in self._tables.items()}
        self._index_starts: dict[str, Rows] = {}
        for name, index in self._indexes.items():
            size, partitions = manifest.candidates[index.corpus].size, index.partitions
            self._index_starts[name] = np.minimum(_starts(partitions, total) * -(-size // partitions), size)

    def held_by(self, shard: ShardNumber) -> dict[str, list[int]]:
        """Returns the first row, or candidate, that a shard holds, and the end, by table and index."""
        starts = {f"tables.{name}": each for name, each in self._row_starts.items()}
        starts |= {f"indexes.{name}": each for name, each in self._index_starts.items()}
        return {name: each[shard.number - 1 : shard.number + 1].tolist() for name, each in starts.items()}

    def rows(self, tables: Mapping[str, Rows], left_s: float) -> dict[str, FetchedRows]:
        """See RemoteParts."""
        found: dict[str, FetchedRows] = {}
        wanted = {name: _split(rows, self._row_starts[name]) for name, rows in tables.items()}
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
        wanted = {index: _split(distinct, self._index_starts[index])}
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

    def _fetch(
        self, wanted: Mapping[str, Mapping[int, tuple[slice, Rows]]], is_index: bool, left_s: float
    ) -> dict[int, Any]:
        """Asks each shard for all of its rows at once; returns answers, or why there is none, by shard."""
        requests: dict[int, shard_pb.RowsRequest] = {}
        for name, by_shard in wanted.items():
            for number, (_, positions) in by_shard.items():
                if number not in requests:
                    requests[number] = shard_pb.RowsRequest(bundle=self._bundle(number))
                source = {"index": name} if is_index else {"table": name}
                requests[number].rows.append(shard_pb.Rows(positions=positions.astype("<u4").tobytes(), **source))
        return self._ask(requests, "Rows", left_s)

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


def _split(rows: Rows, starts: Rows) -> dict[int, tuple[slice, Rows]]:
    """Returns where among ascending rows those of each shard lie, and their positions there."""
    ends = rows.searchsorted(starts)
    return {
        number + 1: (slice(first, end), rows[first:end] - starts[number])
        for number, (first, end) in enumerate(pairwise(ends.tolist()))
        if end > first
    }
