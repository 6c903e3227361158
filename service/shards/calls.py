"""Requests of routers to shards, and their answers."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bundle.tables.sharding import ShardNumber
from service.engine.calls import Answer, Request, magnitude
from service.engine.retrieval.search import Found
from service.engine.retrieval.sharded_search import IndexSearch


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

    @property
    def cost(self) -> int:
        """About one for some hundred rows."""
        return 1 + sum(each.positions.size for each in self.rows) // 256

    @property
    def kind(self) -> Hashable:
        """Equal for about as many rows."""
        return RowsRead, self.cost.bit_length()


@dataclass(frozen=True)
class RowsFound(Answer):
    """Answer to a RowsRead: of each of its parts the rows as stored, and the scales of
    int8 rows.
    """

    rows: tuple[tuple[NDArray[np.uint8], NDArray[np.uint8]], ...]

    @property
    def encoding_cost(self) -> int:
        """See `Answer`."""
        return sum(values.nbytes + scales.nbytes for values, scales in self.rows) // 4


@dataclass(frozen=True)
class PartSearch(ShardRequest):
    """A search of those candidates that a shard holds."""

    search: IndexSearch

    @property
    def holds_vectors(self) -> bool:
        """Searches always send vectors."""
        return True

    @property
    def cost(self) -> int:
        """One for each query."""
        return len(self.search.vectors)

    @property
    def kind(self) -> Hashable:
        """Equal for requests with the same names and about as many values."""
        return PartSearch, *map(magnitude, vars(self.search).values())


@dataclass(frozen=True)
class PartFound(Answer):
    """Answer to a PartSearch: positions are those in the whole index."""

    found: Found

    @property
    def encoding_cost(self) -> int:
        """See `Answer`."""
        return int(self.found.positions.size)
