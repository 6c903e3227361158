"""One version of a model on the shards: which shard holds which rows and partitions, and reading
them. Its methods are parts of computations, which await the calls of shards.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bundle.arithmetic import ceil_div
from bundle.features.sources import FetchedRows, RemoteTable, remote_tables
from bundle.format.dtypes import SCALE_BYTES, STORED, row_bytes, widened
from bundle.format.manifest import Index, Manifest, Table
from bundle.tables import sharding
from bundle.tables.id_values import distinct
from bundle.tables.sharding import ShardNumber
from service.codec.stubs import shard_service_pb2 as shard_pb
from service.config import ServiceSettings
from service.engine.retrieval.search import Found, concatenated
from service.engine.retrieval.sharded_search import IndexSearch
from service.errors import Code, Internal, NotReady, ServiceError
from service.shards import messages
from service.shards.calls import k_max, query_bytes, stored_bytes
from service.shards.replica import Key

Rows = NDArray[np.int64]
_ELEMENT_BYTES = 64
"""Of the framing of one list in a request, at most."""
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
        self._divisions: dict[int, _Division] = {}

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

        def reads_of(division: _Division) -> dict[str, _Read]:
            return {
                layout: _Read(division.layouts[layout], rows) for layout, rows in wanted.items()
            }

        return await self._execute(reads_of, left_s)

    async def vectors(self, index: str, positions: Rows, left_s: float) -> NDArray[np.float32]:
        """Reads vectors of an index from the shards. Implements RemoteParts.vectors."""

        def reads_of(division: _Division) -> dict[str, _Read]:
            return {index: _Read(division.indexes[index], distinct(positions))}

        fetched = await self._execute(reads_of, left_s)
        return fetched[index].take(positions)

    async def search(self, wanted: IndexSearch, left_s: float) -> tuple[list[Found], float]:
        """Searches the partitions of every shard that has any. Implements RemoteParts.search."""

        def calls_of(division: _Division) -> list[ShardCall]:
            bounds = division.indexes[wanted.index].bounds
            parts = self._parts(wanted, int(np.diff(bounds).max()))
            return [
                self._search_call(shard, bounds, part)
                for shard, count in zip(division.shards, np.diff(bounds), strict=True)
                if count
                for part in parts
            ]

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
        self, calls_of: Callable[[_Division], list[ShardCall]], left_s: float
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
        self, reads_of: Callable[[_Division], dict[str, _Read]], left_s: float
    ) -> dict[str, FetchedRows]:
        """Reads all rows, with one call per shard whatever the number of tables, unless the rows
        exceed a message: a call costs more than the rows it carries.
        """
        reads: dict[str, _Read] = {}
        slices_by_call: list[list[_Slice]] = []

        def calls_of(division: _Division) -> list[ShardCall]:
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

    def _slices(self, shard: ShardNumber, reads: Iterable[_Read]) -> list[list[_Slice]]:
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

    def _rows_call(self, shard: ShardNumber, slices: Sequence[_Slice]) -> ShardCall:
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
        sizes = [wanted.vectors[0].nbytes + each.nbytes + _ELEMENT_BYTES for each in lists]
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

    def _division(self, total: int) -> _Division:
        if total not in self._divisions:
            self._divisions[total] = _Division(
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


class _Division:
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
          remote: The places of the tables among those of their layouts.
        """
        self.shards = [ShardNumber(number, total) for number in range(1, total + 1)]
        self.starts = {
            f"tables.{name}": self._starts_of(table.rows) for name, table in tables.items()
        }
        self.layouts = self._layouts_of(tables, remote)
        self.indexes: dict[str, _Layout] = {}
        for name, index in indexes.items():
            partition_rows = ceil_div(sizes[name], index.partitions)
            bounds = np.minimum(self._starts_of(index.partitions) * partition_rows, sizes[name])
            self.starts[f"indexes.{name}"] = bounds
            self.indexes[name] = _Layout(
                [name], bounds, "float32", index.dim, [True], is_index=True
            )

    def _layouts_of(
        self, tables: Mapping[str, Table], remote: Mapping[str, RemoteTable]
    ) -> dict[str, _Layout]:
        """Joins the tables whose rows can travel in one message."""
        names_by_layout: dict[str, list[str]] = {}
        for name, table in remote.items():
            names_by_layout.setdefault(table.among.name, []).append(name)

        layouts = {}
        for layout, names in names_by_layout.items():
            starts = [remote[name].first + self.starts[f"tables.{name}"][:-1] for name in names]
            last_table = remote[names[-1]]
            bounds = np.array([*np.concatenate(starts), last_table.first + last_table.rows])
            required = [tables[name].unavailable == "error" for name in names]
            entry = tables[names[0]]
            layouts[layout] = _Layout(names, bounds, entry.dtype, entry.dim, required)
        return layouts

    def _starts_of(self, rows: int) -> Rows:
        """Returns the first row of each shard, then the number of rows."""
        return np.array([*(sharding.row_range(rows, shard).first for shard in self.shards), rows])


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

    @property
    def row_bytes(self) -> int:
        """The size of one row in a response."""
        return stored_bytes(self.dtype, self.dim)


class _Read:
    """Reads distinct ascending rows of one layout from the shards that hold them."""

    def __init__(self, layout: _Layout, rows: Rows) -> None:
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

    def slice_on(self, shard: ShardNumber) -> _Slice:
        """Returns the rows that a shard holds."""
        return _Slice(self, np.flatnonzero(self._owners == shard.number))

    def store(self, part: _Slice, vectors: NDArray[np.float32]) -> None:
        """Stores rows that a shard returned."""
        self._vectors[part.rows] = vectors

    def mark_unavailable(self, part: _Slice, problem: ServiceError) -> None:
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
class _Slice:
    """Rows of one layout that one call reads from a shard.

    Attributes:
      read: The read that they belong to.
      rows: [n] ascending: which of its rows they are.
    """

    read: _Read
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
        return 4 * self.rows.size + _ELEMENT_BYTES * len(self.read.layout.names)

    def pieces(self, response_bytes: int, request_bytes: int) -> list[_Slice]:
        """Divides the rows into pieces whose messages have at most so many bytes."""
        room = request_bytes - _ELEMENT_BYTES * len(self.read.layout.names)
        rows_max = max(1, min(response_bytes // self.read.layout.row_bytes, room // 4))
        ends = range(rows_max, self.rows.size, rows_max)
        return [_Slice(self.read, rows) for rows in np.split(self.rows, ends)]

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
