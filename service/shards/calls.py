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
from bundle.tables.sharding import ShardNumber
from service.config import ServiceSettings
from service.engine.calls import Request, Result, Vectors, magnitude
from service.engine.execution import Execution
from service.engine.limits import NotFinite, check_bytes
from service.engine.names import show_version
from service.engine.retrieval import filters, search
from service.engine.retrieval.filters import Compiled
from service.engine.retrieval.search import Found
from service.engine.retrieval.sharded_search import IndexSearch
from service.errors import FieldViolation, InvalidArgument, NotFound
from service.versions.version import LoadedIndex, ModelVersion, Sizes

_CANDIDATE_BYTES = 8
"""Of one candidate: its position and its score."""
_EXPLANATION_BYTES = 128
"""At most, of how one query's candidates were found, with their number."""

Stored = tuple[NDArray[np.uint8], NDArray[np.uint8]]
"""Rows and scales as they are stored."""


@dataclass(frozen=True)
class ShardRequest(Request):
    """What requests of routers to shards have.

    Attributes:
      fingerprint: of the bundle that is meant.
      shard: that is meant.
    """

    fingerprint: int
    shard: ShardNumber


@dataclass(frozen=True)
class RowPositions:
    """Which rows a shard reads, by position from the first that it holds.

    Attributes:
      tables: of one row layout, each with counts[i] of the positions, one table after the other.
      counts, positions: uint32.
      index: whose vectors are read instead; empty: tables are.
    """

    tables: tuple[str, ...]
    counts: NDArray[np.uint32]
    positions: NDArray[np.uint32]
    index: str = ""


@dataclass(frozen=True)
class RowsRead(ShardRequest):
    """Rows that a shard holds."""

    rows: tuple[RowPositions, ...]

    def cost(self, sizes: Sizes) -> int:  # noqa: ARG002 - as all
        """About one for some hundred rows."""
        return 1 + sum(each.positions.size for each in self.rows) // 256

    @property
    def kind(self) -> Hashable:
        """Equal for about as many rows."""
        return RowsRead, self.cost(Sizes()).bit_length()


@dataclass(frozen=True)
class RowsFound(Result):
    """Answer to a RowsRead: of each of its parts the rows as stored, and the scales of
    int8 rows.
    """

    rows: tuple[tuple[NDArray[np.uint8], NDArray[np.uint8]], ...]

    @property
    def encoding_cost(self) -> int:
        """See `Result`."""
        return sum(values.nbytes + scales.nbytes for values, scales in self.rows) // 4


@dataclass(frozen=True)
class PartSearch(ShardRequest):
    """A search of those candidates that a shard holds."""

    search: IndexSearch

    @property
    def holds_vectors(self) -> bool:
        """Searches always send vectors."""
        return True

    def cost(self, sizes: Sizes) -> int:  # noqa: ARG002 - as all
        """One for each query."""
        return len(self.search.vectors)

    @property
    def kind(self) -> Hashable:
        """Equal for requests with the same names and about as many values."""
        return PartSearch, *map(magnitude, vars(self.search).values())


@dataclass(frozen=True)
class PartFound(Result):
    """Answer to a PartSearch: positions are those in the whole index.

    Attributes:
      found: The candidates; none if a score is beyond float32.
      overflow: Whether one is.
    """

    found: Found
    overflow: bool = False

    @property
    def encoding_cost(self) -> int:
        """See `Result`."""
        return int(self.found.positions.size)


async def read_rows(
    model_version: ModelVersion, request: RowsRead, settings: ServiceSettings, execution: Execution
) -> RowsFound:
    """Reads rows as they are stored.

    Raises:
      NotFound: this process is another shard, or holds another bundle, or not the table or index.
      InvalidArgument: a position is beyond the rows held.
    """
    _check(model_version, request, settings)
    size = sum([_stored_bytes(model_version, each) for each in request.rows])
    check_bytes(size, "the rows", settings)
    execution.begin("lookup")
    rows = [
        _vectors(model_version, each) if each.index else _table_rows(model_version, each)
        for each in request.rows
    ]
    return RowsFound(model_version.model, model_version.version, tuple(rows))


def stored_bytes(dtype: str, dim: int) -> int:
    """Returns how many bytes a row of a table has in a response, with its scale."""
    scale_bytes = SCALE_BYTES if dtype == "int8" else 0
    return row_bytes(dtype, dim) + scale_bytes


def _stored_bytes(model_version: ModelVersion, wanted: RowPositions) -> int:
    """Returns how many bytes the wanted rows have."""
    manifest = model_version.manifest
    if wanted.index in manifest.indexes:
        return int(wanted.positions.size) * 4 * manifest.indexes[wanted.index].dim
    tables = manifest.tables
    return sum(
        int(count) * stored_bytes(tables[name].dtype, tables[name].dim)
        for name, count in zip(wanted.tables, wanted.counts.tolist(), strict=True)
        if name in tables
    )


def _vectors(model_version: ModelVersion, wanted: RowPositions) -> Stored:
    vectors = _index(model_version, wanted.index).vectors
    _check_positions(wanted.index, wanted.positions, len(vectors))
    taken: NDArray[Any] = vectors.take(wanted.positions, axis=0)
    return taken.view(np.uint8), np.empty((wanted.positions.size, 0), np.uint8)


def _table_rows(model_version: ModelVersion, wanted: RowPositions) -> Stored:
    if not wanted.tables:
        raise InvalidArgument.of_field("tables", "empty", "at least one table or index")
    found = []
    for name, positions in zip(
        wanted.tables, np.split(wanted.positions, wanted.counts.cumsum()[:-1]), strict=True
    ):
        table = model_version.tables.get(name)
        if table is None:
            raise _not_held(model_version, "table", name)
        _check_positions(name, positions, table.rows)
        found.append(table.stored(positions.astype(np.int64)))
    if len({values.shape[1:] + scales.shape[1:] for values, scales in found}) != 1:
        names = ", ".join(wanted.tables)[:128]
        raise InvalidArgument.of_field("tables", names, "a list of one row layout", "holds")
    values, scales = zip(*found, strict=True)
    return np.concatenate(values), np.concatenate(scales)


async def search_part(
    model_version: ModelVersion,
    request: PartSearch,
    settings: ServiceSettings,
    execution: Execution,
) -> PartFound:
    """Searches the candidates of an index that are held here.

    Raises:
      NotFound: this process is another shard, or holds another bundle, or no part of the index.
      InvalidArgument: k or a vector is out of range, the filter does not suit the attributes, or
        the exclusions not the vectors.
      TooLarge: The response would exceed `max_response_bytes`.
    """
    _check(model_version, request, settings)
    wanted = request.search
    n = len(wanted.vectors)
    _check_search(wanted)
    index = _index(model_version, wanted.index)
    # A router requests as many as the whole index may have to give.
    k = min(wanted.k, len(index.vectors))
    check_bytes(n * query_bytes(k), f"{n} queries of {k} candidates", settings)
    _check_vectors(wanted.vectors, index)
    compiled = None
    if wanted.filter:
        compiled = filters.compiled(index, wanted.filter, execution.check)
    queries = search.Queries(wanted.vectors, _allowed_here(index, wanted, compiled))
    options = search.SearchOptions(k, wanted.exact, wanted.recall, wanted.explain)
    try:
        neighbors = search.nearest(index, queries, options, execution)
    except NotFinite:
        # Only the router knows whether numbers of its client, or of a tower, are at fault.
        nothing = Found(np.empty(0, np.int64), np.empty(0, np.float32), np.zeros(1, np.int64))
        return PartFound(model_version.model, model_version.version, nothing, overflow=True)
    execution.computed(n)
    neighbors = neighbors._replace(positions=neighbors.positions + index.first)
    if not wanted.explain:
        neighbors = neighbors._replace(explanations=())
    return PartFound(model_version.model, model_version.version, neighbors)


def query_bytes(k: int) -> int:
    """Returns how many bytes the k candidates of one query have in a response, at most."""
    return _EXPLANATION_BYTES + k * _CANDIDATE_BYTES


def k_max(response_bytes: int) -> int:
    """Returns how many candidates of one query a response of so many bytes can hold."""
    return max(1, (response_bytes - _EXPLANATION_BYTES) // _CANDIDATE_BYTES)


def _check_search(wanted: IndexSearch) -> None:
    if not len(wanted.vectors):
        raise InvalidArgument.of_field("vectors", "empty", "at least one")
    if wanted.k < 1:
        raise InvalidArgument.of_field("k", wanted.k, "at least 1")
    if not 0 <= wanted.recall <= 1:
        raise InvalidArgument.of_field("recall", wanted.recall, "0 to 1")
    for positions in (wanted.denied, *wanted.excluded):
        # They are searched by bisection. Differences of uint32 would wrap around.
        if (positions[1:] <= positions[:-1]).any():
            value = "positions that do not ascend"
            raise InvalidArgument.of_field("denied or excluded", value, "a list that does", "has")


def _check_vectors(vectors: Vectors, index: LoadedIndex) -> None:
    dim = index.entry.dim
    if vectors.shape[1] != dim:
        raise InvalidArgument.of_field("vectors", vectors.shape[1], str(dim), "has dim")
    if not np.isfinite(vectors).all():
        raise InvalidArgument.of_field("vectors", "NaN or an infinity", "a finite number", "has")


def _allowed_here(
    index: LoadedIndex, wanted: IndexSearch, compiled: Compiled | None
) -> search.Allowed:
    """Returns which candidates held here each query may find, by position among them."""
    n = len(wanted.vectors)
    if len(wanted.excluded) not in (0, n):
        value = f"{len(wanted.excluded)} lists for {n} queries"
        raise InvalidArgument.of_field("excluded", value, "none or one of each query", "has")
    bounds = [index.first, index.first + len(index.vectors)]

    def held(positions: NDArray[np.uint32]) -> NDArray[Any]:
        first, end = positions.searchsorted(bounds)
        return positions[first:end] - np.uint32(index.first)

    none: NDArray[Any] = np.empty(0, np.uint32)
    excluded = [*map(held, wanted.excluded)] or [none] * n
    return search.Allowed(held(wanted.denied), excluded, compiled)


def _check(model_version: ModelVersion, request: ShardRequest, settings: ServiceSettings) -> None:
    if request.shard != settings.shard:
        violation = FieldViolation("shard", str(request.shard), str(settings.shard))
        raise NotFound(f"this process is shard {settings.shard}, not {request.shard}", violation)
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
