"""One version of a model on the shards: which shard holds which rows and partitions, and how they
are read. Its methods are parts of computations, which await the calls of shards.
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
from bundle.tables.shard_number import ShardNumber
from service.codec.stubs import shard_service_pb2 as shard_pb
from service.config import ServiceSettings
from service.engine.neighbors import Neighbors, concatenate
from service.engine.retrieval.served_search import IndexSearch
from service.errors import Internal, NotReady, ServiceError
from service.shards import messages
from service.shards.calls import k_max, query_bytes
from service.shards.division import Division, Rows
from service.shards.messages import LIST_BYTES
from service.shards.replica import Key
from service.shards.row_reads import LayoutRead, ShardSlice

_FIXED_BYTES = 4096
"""Upper bound of the size of a message without its lists: names, and the bundle."""


@dataclass(frozen=True)
class ShardCall:
    """A call of a shard.

    Attributes:
      shard: The shard to call.
      method: The name of the method in the contract.
      request: The message that is sent.
      read: Reads the response; raises Internal if it does not fit the request.
      slices: The rows that are read; (): it is a search.
    """

    shard: ShardNumber
    method: str
    request: Any
    read: Callable[[Any], Any]
    slices: Sequence[ShardSlice] = ()

    def is_finite(self, result: Any) -> bool:
        """Returns whether no row that was read is NaN or infinite although it should not be."""
        if not self.slices:
            return True
        return all(
            not shard_slice.read.layout.is_finite or np.isfinite(vectors).all()
            for shard_slice, vectors in zip(self.slices, result, strict=True)
        )


class Router(Protocol):
    """Calls shards."""

    def division(self, key: Key) -> int | None:
        """Returns into how many shards a bundle is divided; None: no division is complete."""

    def call_all(self, key: Key, calls: Sequence[ShardCall], left_s: float) -> Awaitable[list[Any]]:
        """Makes several calls at once.

        Returns:
          For each call, what was read of the response, or the ServiceError with which it failed.
        """


class RemoteVersion:
    """Reads from the shards of one version. Implements RemoteParts.

    Attributes:
      key: The bundle that the shards must hold.
      tables: The tables that shards hold.
      is_divided: Whether shards hold any table or index of the version.
    """

    def __init__(
        self, router: Router, manifest: Manifest, key: Key, total: int, settings: ServiceSettings
    ) -> None:
        """Derives what each shard holds.

        Args:
          router: The router, which calls the shards.
          manifest: The manifest of the whole bundle.
          key: The bundle that the shards must hold.
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
        """The number of shards that calls go to."""
        # Where no division is complete any more, calls go to the last one, and name the lost shard.
        if self.is_divided:
            self._total = self._router.division(self.key) or self._total
        return self._total

    def held_by(self, shard: ShardNumber) -> dict[str, list[int]]:
        """Returns which rows of each table, and which candidates of each index, a shard holds.

        Returns:
          By the name of the table or index, the position of the first row or candidate, and the
          position after the last.
        """
        return {
            name: starts[shard.number - 1 : shard.number + 1].tolist()
            for name, starts in self._division(shard.total).starts.items()
        }

    async def rows(
        self, rows_by_layout: Mapping[str, Rows], left_s: float
    ) -> dict[str, FetchedRows]:
        """Reads rows from the shards. Implements RemoteParts.rows."""

        def reads_of(division: Division) -> dict[str, LayoutRead]:
            return {
                layout: LayoutRead(division.layouts[layout], rows)
                for layout, rows in rows_by_layout.items()
            }

        return await self._read_all(reads_of, left_s)

    async def vectors(self, index: str, positions: Rows, left_s: float) -> NDArray[np.float32]:
        """Reads vectors of an index from the shards. Implements RemoteParts.vectors."""

        def reads_of(division: Division) -> dict[str, LayoutRead]:
            return {index: LayoutRead(division.indexes[index], distinct(positions))}

        fetched = await self._read_all(reads_of, left_s)
        return fetched[index].take(positions)

    async def search(
        self, index_search: IndexSearch, left_s: float
    ) -> tuple[list[Neighbors], float]:
        """Searches the partitions of every shard that has any. Implements RemoteParts.search."""

        def calls_of(division: Division) -> list[ShardCall]:
            bounds = division.indexes[index_search.index].bounds
            counts = np.diff(bounds)
            # A shard receives those denied candidates that it holds: a deny list may be long.
            ends = index_search.denied.searchsorted(bounds[1:-1])
            denied_by_shard = np.split(index_search.denied, ends)
            calls = []
            for shard, count, denied in zip(division.shards, counts, denied_by_shard, strict=True):
                # An index with fewer partitions than shards leaves shards without any.
                if not count:
                    continue
                shard_search = replace(index_search, denied=denied)
                parts = self._parts(shard_search, int(counts.max()))
                calls += [self._search_call(shard, bounds, part) for part in parts]
            return calls

        calls, responses = await self._call_all(calls_of, left_s)
        parts_by_shard: dict[ShardNumber, list[Neighbors]] = {}
        problems: dict[ShardNumber, ServiceError] = {}
        for call, response in zip(calls, responses, strict=True):
            if isinstance(response, ServiceError):
                problems[call.shard] = response
            else:
                parts_by_shard.setdefault(call.shard, []).append(response)

        size = self._sizes[index_search.index]
        lost_ranges = [self.held_by(shard)[f"indexes.{index_search.index}"] for shard in problems]
        lost_count = sum([end - first for first, end in lost_ranges])
        share = 1 - lost_count / size
        if share < self._settings.shard_min_searched:
            raise next(iter(problems.values()))

        # A shard that failed some of its calls searched only some of the queries, so it is left out
        # of all.
        neighbors = [
            concatenate(parts) for shard, parts in parts_by_shard.items() if shard not in problems
        ]
        return neighbors, share

    async def _call_all(
        self, calls_of: Callable[[Division], list[ShardCall]], left_s: float
    ) -> tuple[list[ShardCall], list[Any]]:
        """Calls the shards of one division; the shards of another one if it is no longer complete.

        Returns:
          The calls; and for each, what was read of the response, or the error with which it failed.
        """
        end = time.monotonic() + left_s
        total = self.total
        calls = calls_of(self._division(total))
        responses = await self._router.call_all(self.key, calls, left_s)
        # All calls are repeated: what one shard of a division holds is no range of the other.
        if any(isinstance(response, NotReady) for response in responses) and self.total != total:
            calls = calls_of(self._division(self.total))
            left_s = end - time.monotonic()
            responses = await self._router.call_all(self.key, calls, left_s)
        return calls, responses

    async def _read_all(
        self, reads_of: Callable[[Division], dict[str, LayoutRead]], left_s: float
    ) -> dict[str, FetchedRows]:
        """Reads all rows, with one call per shard whatever the number of tables, unless the rows
        exceed a message: a call costs more than the rows it carries.
        """
        reads: dict[str, LayoutRead] = {}
        slices_by_call: list[list[ShardSlice]] = []

        def calls_of(division: Division) -> list[ShardCall]:
            # A second division replaces what was prepared for the first one.
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
                for shard_slice in slices:
                    shard_slice.read.mark_unavailable(shard_slice, response)
                continue
            for shard_slice, vectors in zip(slices, response, strict=True):
                shard_slice.read.store(shard_slice, vectors)
        return {name: read.fetched() for name, read in reads.items()}

    def _slices(self, shard: ShardNumber, reads: Iterable[LayoutRead]) -> list[list[ShardSlice]]:
        """Returns what is read from a shard: one list per call, each of which fits into the
        messages of a shard.
        """
        slices = [read.slice_on(shard) for read in reads]
        slices = [shard_slice for shard_slice in slices if shard_slice.rows.size]
        if not slices:
            return []

        response_bytes = sum(shard_slice.response_bytes for shard_slice in slices)
        request_bytes = sum(shard_slice.request_bytes for shard_slice in slices)
        if response_bytes <= self._response_bytes and request_bytes <= self._request_bytes:
            return [slices]

        pieces: list[ShardSlice] = []
        for shard_slice in slices:
            pieces += shard_slice.pieces(self._response_bytes, self._request_bytes)
        return [[piece] for piece in pieces]

    @property
    def _request_bytes(self) -> int:
        """The number of bytes that the lists of one request may have."""
        return max(1, self._settings.max_request_bytes - _FIXED_BYTES)

    @property
    def _response_bytes(self) -> int:
        """The number of bytes that the lists of one response may have."""
        return max(1, self._settings.max_response_bytes - _FIXED_BYTES)

    def _rows_call(self, shard: ShardNumber, slices: Sequence[ShardSlice]) -> ShardCall:
        rows = [shard_slice.message() for shard_slice in slices]
        request = shard_pb.RowsRequest(bundle=self._bundle(shard), rows=rows)

        def read(response: shard_pb.RowsResponse) -> list[NDArray[np.float32]]:
            if len(response.rows) != len(slices):
                raise Internal(
                    f"shard {shard} returned rows of {len(response.rows)} layouts; "
                    f"{len(slices)} were requested"
                )
            return [
                shard_slice.vectors(shard, stored)
                for shard_slice, stored in zip(slices, response.rows, strict=True)
            ]

        return ShardCall(shard, "Rows", request, read, slices)

    def _search_call(self, shard: ShardNumber, bounds: Rows, search: IndexSearch) -> ShardCall:
        first, end = bounds[shard.number - 1 : shard.number + 1].tolist()
        request = messages.search_message(self._bundle(shard), search)

        def read(response: shard_pb.SearchResponse) -> Neighbors:
            return messages.read_found(response, search, range(first, end), shard)

        return ShardCall(shard, "Search", request, read)

    def _parts(self, search: IndexSearch, held_max: int) -> list[IndexSearch]:
        """Divides a search into searches whose messages fit: each for some of the vectors, and for
        no more candidates than a shard holds.

        Args:
          search: The search on one shard.
          held_max: The largest number of candidates on one shard.
        """
        k = min(search.k, held_max, k_max(self._response_bytes))
        vectors_max = max(1, self._response_bytes // query_bytes(k))
        vector_bytes = search.vectors[0].nbytes + LIST_BYTES
        sizes = [vector_bytes] * len(search.vectors)
        if search.excluded:
            sizes = [vector_bytes + excluded.nbytes for excluded in search.excluded]
        # Every part carries the whole deny list of the shard.
        size_max = self._request_bytes - search.denied.nbytes

        parts = []
        first = 0
        while first < len(search.vectors):
            # One vector at least, or there would be no progress.
            end = first + 1
            size = sizes[first]
            while end < len(sizes) and end - first < vectors_max:
                if size + sizes[end] > size_max:
                    break
                size += sizes[end]
                end += 1
            part = replace(
                search,
                k=k,
                vectors=search.vectors[first:end],
                excluded=search.excluded[first:end],
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
