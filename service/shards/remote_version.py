"""One version of a model on the shards: which shard holds which rows and partitions, and reading
them. Its methods are parts of computations, which await the calls of shards.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bundle.features.sources import FetchedRows, RemoteTable, remote_tables
from bundle.format.manifest import Manifest
from bundle.tables import sharding
from bundle.tables.id_values import distinct
from bundle.tables.sharding import ShardNumber
from service.codec.stubs import shard_service_pb2 as shard_pb
from service.config import ServiceSettings
from service.engine.retrieval.search import Found, concatenated
from service.engine.retrieval.sharded_search import IndexSearch
from service.errors import Internal, NotReady, ServiceError
from service.shards import messages
from service.shards.calls import k_max, query_bytes
from service.shards.division import Division, Rows
from service.shards.messages import LIST_BYTES
from service.shards.replica import Key
from service.shards.row_reads import Read, Slice

_FIXED_BYTES = 4096
"""Of a message, beside its lists: names, and the bundle."""


@dataclass(frozen=True)
class ShardCall:
    """A call of a shard.

    Attributes:
      shard: The shard.
      method: The name of the method.
      request: The message.
      read: Reads the response; raises Internal if it does not fit the request.
    """

    shard: ShardNumber
    method: str
    request: Any
    read: Callable[[Any], Any]


class Router(Protocol):
    """Calls shards."""

    def division(self, key: Key) -> int | None:
        """Returns into how many shards a bundle is divided; None: no division is complete."""

    def call_all(self, key: Key, calls: Sequence[ShardCall], left_s: float) -> Awaitable[list[Any]]:
        """Makes several calls at once.

        Returns:
          What was read of each response, or the ServiceError with which the call failed.
        """


class RemoteVersion:
    """Reads from the shards of one version. Implements RemoteParts.

    Attributes:
      key: Identifies the version on the shards.
      tables: The tables that shards hold.
      is_divided: Whether shards hold anything of it.
    """

    def __init__(
        self, router: Router, manifest: Manifest, key: Key, total: int, settings: ServiceSettings
    ) -> None:
        """Derives what each shard holds.

        Args:
          router: Calls the shards.
          manifest: The manifest of the whole bundle.
          key: Identifies the version on the shards.
          total: The number of shards, until the router reports another one.
          settings: The settings of the router.
        """
        self.key = key
        self._router = router
        self._settings = settings
        self._total = total
        self._tables = sharding.sharded_tables(manifest, settings.shard_min_bytes)
        self._indexes = sharding.sharded_indexes(manifest)
        self._sizes = {
            name: manifest.corpora[index.corpus].size for name, index in self._indexes.items()
        }
        self.tables: Mapping[str, RemoteTable] = remote_tables(self._tables)
        self.is_divided = bool(self._tables or self._indexes)
        self._divisions: dict[int, Division] = {}

    @property
    def total(self) -> int:
        """The number of shards that calls go to: of a division that is not complete any more, if no
        other is.
        """
        if self.is_divided:
            self._total = self._router.division(self.key) or self._total
        return self._total

    def held_by(self, shard: ShardNumber) -> dict[str, list[int]]:
        """Returns which rows of each table, and which candidates of each index, a shard holds.

        Returns:
          By name of the table or index, the first row or candidate, and the one after the last.
        """
        return {
            name: starts[shard.number - 1 : shard.number + 1].tolist()
            for name, starts in self._division(shard.total).starts.items()
        }

    async def rows(self, wanted: Mapping[str, Rows], left_s: float) -> dict[str, FetchedRows]:
        """Reads rows from the shards. Implements RemoteParts.rows."""

        def reads_of(division: Division) -> dict[str, Read]:
            return {layout: Read(division.layouts[layout], rows) for layout, rows in wanted.items()}

        return await self._execute(reads_of, left_s)

    async def vectors(self, index: str, positions: Rows, left_s: float) -> NDArray[np.float32]:
        """Reads vectors of an index from the shards. Implements RemoteParts.vectors."""

        def reads_of(division: Division) -> dict[str, Read]:
            return {index: Read(division.indexes[index], distinct(positions))}

        fetched = await self._execute(reads_of, left_s)
        return fetched[index].take(positions)

    async def search(self, wanted: IndexSearch, left_s: float) -> tuple[list[Found], float]:
        """Searches the partitions of every shard that has any. Implements RemoteParts.search."""

        def calls_of(division: Division) -> list[ShardCall]:
            bounds = division.indexes[wanted.index].bounds
            held_max = int(np.diff(bounds).max())
            denied = np.split(wanted.denied, wanted.denied.searchsorted(bounds[1:-1]))
            calls = []
            for shard, count, denied_there in zip(
                division.shards, np.diff(bounds), denied, strict=True
            ):
                if count:
                    shard_search = replace(wanted, denied=denied_there)
                    parts = self._parts(shard_search, held_max)
                    calls += [self._search_call(shard, bounds, part) for part in parts]
            return calls

        calls, responses = await self._call_all(calls_of, left_s)
        parts_by_shard: dict[ShardNumber, list[Found]] = {}
        problems: dict[ShardNumber, ServiceError] = {}
        for call, response in zip(calls, responses, strict=True):
            if isinstance(response, ServiceError):
                problems[call.shard] = response
            else:
                parts_by_shard.setdefault(call.shard, []).append(response)

        size = self._sizes[wanted.index]
        bounds = [self.held_by(shard)[f"indexes.{wanted.index}"] for shard in problems]
        share = 1 - sum([end - first for first, end in bounds]) / size
        if share < self._settings.shard_min_searched:
            raise next(iter(problems.values()))
        searched = [
            concatenated(parts) for shard, parts in parts_by_shard.items() if shard not in problems
        ]
        return searched, share

    async def _call_all(
        self, calls_of: Callable[[Division], list[ShardCall]], left_s: float
    ) -> tuple[list[ShardCall], list[Any]]:
        """Makes calls of the shards of one division; of another one if that is no longer complete.

        Returns:
          The calls, and what was read of each response, or the error with which the call failed.
        """
        end = time.monotonic() + left_s
        total = self.total
        calls = calls_of(self._division(total))
        responses = await self._router.call_all(self.key, calls, left_s)
        if any(isinstance(response, NotReady) for response in responses) and self.total != total:
            calls = calls_of(self._division(self.total))
            left_s = end - time.monotonic()
            responses = await self._router.call_all(self.key, calls, left_s)
        return calls, responses

    async def _execute(
        self, reads_of: Callable[[Division], dict[str, Read]], left_s: float
    ) -> dict[str, FetchedRows]:
        """Reads all rows, with one call per shard whatever the number of tables, unless the rows
        exceed a message: a call costs more than the rows it carries.
        """
        reads: dict[str, Read] = {}
        slices_by_call: list[list[Slice]] = []

        def calls_of(division: Division) -> list[ShardCall]:
            reads.update(reads_of(division))
            slices_by_call.clear()
            calls = []
            for shard in division.shards:
                for slices in self._slices(shard, reads.values()):
                    slices_by_call.append(slices)
                    calls.append(self._rows_call(shard, slices))
            return calls

        _, responses = await self._call_all(calls_of, left_s)
        for slices, response in zip(slices_by_call, responses, strict=True):
            if isinstance(response, ServiceError):
                for part in slices:
                    part.read.mark_unavailable(part, response)
                continue
            for part, vectors in zip(slices, response, strict=True):
                part.read.store(part, vectors)
        return {name: read.fetched() for name, read in reads.items()}

    def _slices(self, shard: ShardNumber, reads: Iterable[Read]) -> list[list[Slice]]:
        """Returns what is read from a shard: one list per call, each of which fits into the
        messages of a shard.
        """
        slices = [part for read in reads if (part := read.slice_on(shard)).rows.size]
        fits = (
            sum(part.response_bytes for part in slices) <= self._response_bytes
            and sum(part.request_bytes for part in slices) <= self._request_bytes
        )
        if not slices or fits:
            return [slices] if slices else []
        return [
            [piece]
            for part in slices
            for piece in part.pieces(self._response_bytes, self._request_bytes)
        ]

    @property
    def _request_bytes(self) -> int:
        """The number of bytes that the lists of one request may have."""
        return max(1, self._settings.max_request_bytes - _FIXED_BYTES)

    @property
    def _response_bytes(self) -> int:
        """The number of bytes that the lists of one response may have."""
        return max(1, self._settings.max_response_bytes - _FIXED_BYTES)

    def _rows_call(self, shard: ShardNumber, slices: Sequence[Slice]) -> ShardCall:
        rows = [part.message() for part in slices]
        request = shard_pb.RowsRequest(bundle=self._bundle(shard), rows=rows)

        def read(response: shard_pb.RowsResponse) -> list[NDArray[np.float32]]:
            if len(response.rows) != len(slices):
                raise Internal(
                    f"shard {shard} returned rows of {len(response.rows)} layouts; "
                    f"{len(slices)} were requested"
                )
            pairs = zip(slices, response.rows, strict=True)
            return [part.vectors(shard, stored) for part, stored in pairs]

        return ShardCall(shard, "Rows", request, read)

    def _search_call(self, shard: ShardNumber, bounds: Rows, wanted: IndexSearch) -> ShardCall:
        first, end = bounds[shard.number - 1 : shard.number + 1].tolist()
        request = messages.search_message(self._bundle(shard), wanted)

        def read(response: shard_pb.SearchResponse) -> Found:
            return messages.read_found(response, wanted, range(first, end), shard)

        return ShardCall(shard, "Search", request, read)

    def _parts(self, wanted: IndexSearch, held_max: int) -> list[IndexSearch]:
        """Divides a search into searches whose messages fit: each for some of the vectors, and for
        no more candidates than a shard holds.

        Args:
          wanted: The search.
          held_max: The largest number of candidates on one shard.
        """
        k = min(wanted.k, held_max, k_max(self._response_bytes))
        vectors_max = max(1, self._response_bytes // query_bytes(k))
        lists = wanted.excluded or [wanted.denied[:0]] * len(wanted.vectors)
        sizes = [wanted.vectors[0].nbytes + each.nbytes + LIST_BYTES for each in lists]
        room = self._request_bytes - wanted.denied.nbytes

        parts = []
        first = 0
        while first < len(wanted.vectors):
            end = first + 1
            size = sizes[first]
            while end < len(sizes) and end - first < vectors_max and size + sizes[end] <= room:
                size += sizes[end]
                end += 1
            part = replace(
                wanted,
                k=k,
                vectors=wanted.vectors[first:end],
                excluded=wanted.excluded[first:end],
            )
            parts.append(part)
            first = end
        return parts

    def _division(self, total: int) -> Division:
        if total not in self._divisions:
            self._divisions[total] = Division(
                total, self._tables, self._indexes, self._sizes, self.tables
            )
        return self._divisions[total]

    def _bundle(self, shard: ShardNumber) -> shard_pb.Bundle:
        model, version, fingerprint = self.key
        return shard_pb.Bundle(
            model=model,
            version=version,
            fingerprint=fingerprint,
            number=shard.number,
            total=shard.total,
        )
