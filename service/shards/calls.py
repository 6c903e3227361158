"""The calls of routers to shards, and how a shard computes them: rows by position, and the nearest
of the candidates that it holds.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.format.dtypes import SCALE_BYTES, row_bytes
from bundle.tables.shard_number import ShardNumber
from service.config import ServiceSettings
from service.contract.messages import Request, Result, Sizes, magnitude
from service.engine import filters
from service.engine.execution import Execution
from service.engine.filters import CompiledFilter
from service.engine.neighbors import (
    AllowedCandidates,
    Neighbors,
    Queries,
    SearchOptions,
)
from service.engine.retrieval import search
from service.engine.retrieval.plan import check_sent_vectors
from service.engine.retrieval.served_search import IndexSearch
from service.engine.validation import NotFinite, check_bytes, show_version
from service.errors import FieldViolation, InvalidArgument, NotFound
from service.versions.version import LoadedIndex, ModelVersion

_CANDIDATE_BYTES = 8
"""Size of a candidate in a response: its position (uint32) and its score (float32)."""
_EXPLANATION_BYTES = 128
"""Upper bound of the size of one query's explanation and count of candidates in a response."""
_ROWS_PER_COST = 256
"""Number of rows that count as one example in the cost of a request: they are only copied."""

StoredRows = tuple[NDArray[np.uint8], NDArray[np.uint8]]
"""Rows and scales as they are stored."""


@dataclass(frozen=True)
class ShardRequest(Request):
    """What every request of a router to a shard states.

    Attributes:
      fingerprint: The crc32c of the manifest of the bundle that the router reads from.
      shard: The shard that the router takes the process for.
    """

    fingerprint: int
    shard: ShardNumber


@dataclass(frozen=True)
class RowPositions:
    """Which rows a shard reads, by position from the first that it holds.

    Attributes:
      tables: The tables, all of one row layout.
      counts: [tables] uint32, the number of positions of each table.
      positions: [rows] uint32, the positions of the first table, then those of the next one.
      index: The index whose vectors are read instead; empty: rows of the tables are read.
    """

    tables: tuple[str, ...]
    counts: NDArray[np.uint32]
    positions: NDArray[np.uint32]
    index: str = ""


@dataclass(frozen=True)
class RowsRequest(ShardRequest):
    """A request for rows that a shard holds."""

    rows: tuple[RowPositions, ...]

    def cost(self, sizes: Sizes) -> int:  # noqa: ARG002 - part of the interface
        """About one for some hundred rows."""
        row_count = sum(row_positions.positions.size for row_positions in self.rows)
        return 1 + row_count // _ROWS_PER_COST

    @property
    def kind(self) -> Hashable:
        """Equal for about as many rows."""
        return RowsRequest, self.cost(Sizes()).bit_length()


@dataclass(frozen=True)
class RowsResult(Result):
    """The result of a RowsRequest: for each of its `rows`, the rows as stored, and the scales of
    int8 rows.
    """

    rows: tuple[StoredRows, ...]

    @property
    def encoding_cost(self) -> int:
        """See `Result`."""
        # In numbers of four bytes, as all results count them.
        return sum(values.nbytes + scales.nbytes for values, scales in self.rows) // 4


@dataclass(frozen=True)
class SearchRequest(ShardRequest):
    """A request to search the candidates that a shard holds."""

    search: IndexSearch

    @property
    def holds_vectors(self) -> bool:
        """Searches always send vectors."""
        return True

    def cost(self, sizes: Sizes) -> int:  # noqa: ARG002 - part of the interface
        """One for each query."""
        return len(self.search.vectors)

    @property
    def kind(self) -> Hashable:
        """Equal for requests with the same names and about as many values."""
        return SearchRequest, *map(magnitude, vars(self.search).values())


@dataclass(frozen=True)
class SearchResult(Result):
    """The result of a SearchRequest.

    Attributes:
      neighbors: The candidates, by position in the whole index.
    """

    neighbors: Neighbors

    @property
    def encoding_cost(self) -> int:
        """See `Result`."""
        return int(self.neighbors.positions.size)


async def read_rows(
    model_version: ModelVersion,
    request: RowsRequest,
    settings: ServiceSettings,
    execution: Execution,
) -> RowsResult:
    """Reads rows as they are stored.

    Args:
      model_version: The version that is read.
      request: The rows, by their positions in this shard's part of tables and indexes.
      settings: The limits.
      execution: The request's time and phases.

    Raises:
      NotFound: This process is another shard, or holds another bundle, or not the table or index.
      InvalidArgument: A position is beyond the rows that this shard holds, or the tables differ in
        their row layout.
      TooLarge: The response would exceed `max_response_bytes`.
    """
    _check_bundle(model_version, request, settings)
    # The size is computed from the request: nothing is read of what no response can hold.
    size = sum([_response_bytes(model_version, row_positions) for row_positions in request.rows])
    check_bytes(size, "the rows", settings)

    execution.begin("lookup")
    rows = []
    for row_positions in request.rows:
        if row_positions.index:
            rows.append(_index_vectors(model_version, row_positions))
        else:
            rows.append(_table_rows(model_version, row_positions))
    return RowsResult(model_version.model, model_version.version, tuple(rows))


def stored_bytes(dtype: str, dim: int) -> int:
    """Returns the size of a table's row in a response, with its scale, in bytes."""
    if dtype == "int8":
        return row_bytes(dtype, dim) + SCALE_BYTES
    return row_bytes(dtype, dim)


def _response_bytes(model_version: ModelVersion, row_positions: RowPositions) -> int:
    """Returns the size of the rows in a response, in bytes."""
    manifest = model_version.manifest
    row_count = int(row_positions.positions.size)
    if row_positions.index in manifest.indexes:
        return row_count * 4 * manifest.indexes[row_positions.index].dim

    size_bytes = 0
    for name, count in zip(row_positions.tables, row_positions.counts.tolist(), strict=True):
        # Reading the rows rejects a table that the bundle lacks, and names it.
        if table := manifest.tables.get(name):
            size_bytes += count * stored_bytes(table.dtype, table.dim)
    return size_bytes


def _index_vectors(model_version: ModelVersion, row_positions: RowPositions) -> StoredRows:
    held_vectors = _index(model_version, row_positions.index).vectors
    _check_positions(row_positions.index, row_positions.positions, len(held_vectors))
    vectors: NDArray[Any] = held_vectors.take(row_positions.positions, axis=0)
    no_scales = np.empty((row_positions.positions.size, 0), np.uint8)
    return vectors.view(np.uint8), no_scales


def _table_rows(model_version: ModelVersion, row_positions: RowPositions) -> StoredRows:
    if not row_positions.tables:
        raise InvalidArgument.of_field("tables", "empty", "at least one table or index")
    stored_by_table = []
    ends = row_positions.counts.cumsum()
    positions_by_table = np.split(row_positions.positions, ends[:-1])
    for name, positions in zip(row_positions.tables, positions_by_table, strict=True):
        table = model_version.tables.get(name)
        if table is None:
            raise _not_held(model_version, "table", name)
        _check_positions(name, positions, table.rows)
        stored_by_table.append(table.take_stored(positions.astype(np.int64)))

    # Rows of several layouts do not fit into one array.
    row_shapes = {values.shape[1:] + scales.shape[1:] for values, scales in stored_by_table}
    if len(row_shapes) != 1:
        names = ", ".join(row_positions.tables)[:128]
        raise InvalidArgument.of_field("tables", names, "a list of one row layout", "holds")
    values, scales = zip(*stored_by_table, strict=True)
    return np.concatenate(values), np.concatenate(scales)


async def search_part(
    model_version: ModelVersion,
    request: SearchRequest,
    settings: ServiceSettings,
    execution: Execution,
) -> SearchResult:
    """Searches the candidates of an index that this shard holds.

    Args:
      model_version: The version that is searched.
      request: The search, and the bundle and the shard that it is meant for.
      settings: The limits.
      execution: The request's time and phases.

    Raises:
      NotFound: This process is another shard, or holds another bundle, or no part of the index.
      InvalidArgument: k or a vector is out of range, the filter does not suit the attributes, or
        the exclusions do not suit the vectors.
      TooLarge: The response would exceed `max_response_bytes`.
    """
    _check_bundle(model_version, request, settings)
    index_search = request.search
    query_count = len(index_search.vectors)
    _check_search(index_search)
    index = _index(model_version, index_search.index)
    # A router requests as many as the whole index may have to return.
    k = min(index_search.k, len(index.vectors))
    size_bytes = query_count * query_bytes(k)
    check_bytes(size_bytes, f"{query_count} queries of {k} candidates", settings)
    dim = index_search.vectors.shape[1]
    if dim != index.entry.dim:
        raise InvalidArgument.of_field("vectors", dim, str(index.entry.dim), "has dim")
    check_sent_vectors(index_search.vectors)

    compiled = None
    if index_search.filter:
        compiled = filters.compile_filter(index, index_search.filter, execution.check)
    allowed = _allowed_here(index, index_search, compiled)
    queries = Queries(index_search.vectors, allowed)
    options = SearchOptions(k, index_search.exact, index_search.recall, index_search.explain)
    try:
        neighbors = search.nearest(index, queries, options, execution)
    except NotFinite:
        # As a process that holds the whole index leaves them out.
        unsearchable = index.unsearchable
        execution.leave_out("vector", unsearchable.astype(np.int64) + index.first)
        queries = queries._replace(allowed=queries.allowed.without(unsearchable))
        neighbors = search.nearest(index, queries, options, execution)
    execution.count_examples(query_count)

    neighbors = neighbors._replace(positions=neighbors.positions + index.first)
    if not index_search.explain:
        neighbors = neighbors._replace(explanations=())
    return SearchResult(model_version.model, model_version.version, neighbors)


def query_bytes(k: int) -> int:
    """Returns the largest size of one query's k candidates in a response, in bytes."""
    return _EXPLANATION_BYTES + k * _CANDIDATE_BYTES


def k_max(response_bytes: int) -> int:
    """Returns how many candidates of one query fit into a response of `response_bytes`."""
    return max(1, (response_bytes - _EXPLANATION_BYTES) // _CANDIDATE_BYTES)


def _check_search(index_search: IndexSearch) -> None:
    if not len(index_search.vectors):
        raise InvalidArgument.of_field("vectors", "empty", "at least one")
    if index_search.k < 1:
        raise InvalidArgument.of_field("k", index_search.k, "at least 1")
    if not 0 <= index_search.recall <= 1:
        raise InvalidArgument.of_field("recall", index_search.recall, "0 to 1")
    for positions in (index_search.denied, *index_search.excluded):
        # They are searched by bisection. Neighbors are compared, since differences of uint32 would
        # wrap around.
        if (positions[1:] <= positions[:-1]).any():
            value = "positions that do not ascend"
            raise InvalidArgument.of_field("denied or excluded", value, "a list that does", "has")


def _allowed_here(
    index: LoadedIndex, index_search: IndexSearch, compiled: CompiledFilter | None
) -> AllowedCandidates:
    """Returns which of this shard's candidates each query may find, by position among them."""
    query_count = len(index_search.vectors)
    if len(index_search.excluded) not in (0, query_count):
        value = f"{len(index_search.excluded)} lists for {query_count} queries"
        raise InvalidArgument.of_field("excluded", value, "none or one of each query", "has")
    bounds = [index.first, index.first + len(index.vectors)]

    def positions_here(positions: NDArray[np.uint32]) -> NDArray[Any]:
        first, end = positions.searchsorted(bounds)
        return positions[first:end] - np.uint32(index.first)

    denied = positions_here(index_search.denied)
    excluded = [positions_here(positions) for positions in index_search.excluded]
    if not excluded:
        no_positions: NDArray[Any] = np.empty(0, np.uint32)
        excluded = [no_positions] * query_count
    return AllowedCandidates(denied, excluded, compiled)


def _check_bundle(
    model_version: ModelVersion, request: ShardRequest, settings: ServiceSettings
) -> None:
    if request.shard != settings.shard:
        violation = FieldViolation("shard", str(request.shard), str(settings.shard))
        raise NotFound(f"this process is shard {settings.shard}, not {request.shard}", violation)
    # Two exports may have the same version: their rows must never be merged.
    if model_version.fingerprint != request.fingerprint:
        message = (
            f"{show_version(model_version)} is another bundle here; copy the same bundle to all "
            "shards and routers"
        )
        value = f"fingerprint {request.fingerprint}"
        raise NotFound(message, FieldViolation("bundle", value, str(model_version.fingerprint)))


def _index(model_version: ModelVersion, name: str) -> LoadedIndex:
    if name not in model_version.parts:
        raise _not_held(model_version, "index", name)
    return model_version.parts[name]


def _not_held(model_version: ModelVersion, what: str, name: str) -> NotFound:
    """Returns the error for a table or an index of which this process holds nothing."""
    value = repr(name[:128])
    message = f"{show_version(model_version)}: no part of {what} {value} is held here"
    return NotFound(message, FieldViolation(what, value, f"a {what} that is held here"))


def _check_positions(name: str, positions: NDArray[np.uint32], size: int) -> None:
    if positions.size and int(positions.max()) >= size:
        value = f"{positions.max()} of {name[:128]!r}"
        raise InvalidArgument.of_field("positions", value, f"one below {size}", "has")
