"""The rows and indexes that shards hold of a version whose rows change: the changed rows lie on the
router.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.features.sources import Fetched, FetchedRows
from bundle.tables.changed_rows import ChangedRows
from service.engine.computation import completed
from service.versions.version import RemoteParts, ServedIndex

Rows = NDArray[np.int64]
Vectors = NDArray[np.float32]


class ChangedParts:
    """Reads from the shards of a version, and lays changed rows over theirs. Implements
    RemoteParts. Immutable; safe for any number of threads.

    Changed rows are not fetched, so that they are there if their shard is lost.

    Attributes:
      tables: The tables that shards hold.
    """

    def __init__(self, shards: RemoteParts, changed: Mapping[str, ChangedRows]) -> None:
        """Creates a state.

        Args:
          shards: Reach the shards.
          changed: The changed rows of tables that shards hold, and the rows of their new keys.
        """
        self.tables = shards.tables
        self._shards = shards
        self._changed_by_layout: dict[str, list[tuple[int, ChangedRows]]] = {}
        """The first row of each changed table among those of its layout, and its changed rows."""
        for name, changed_rows in changed.items():
            table = shards.tables[name]
            tables = self._changed_by_layout.setdefault(table.among.name, [])
            tables.append((table.first, changed_rows))

    async def rows(self, wanted: Mapping[str, Rows], left_s: float) -> Fetched:
        """Fetches the rows that are not changed. Implements RemoteParts.rows."""
        is_changed = {layout: self._is_changed(layout, rows) for layout, rows in wanted.items()}

        # Changed rows are not fetched: they are known here, also while their shard is lost.
        unchanged_rows = {}
        for layout, rows in wanted.items():
            if not rows.size or not is_changed[layout].all():
                unchanged_rows[layout] = rows[~is_changed[layout]]
        fetched: Fetched = {}
        if unchanged_rows:
            fetched = await self._shards.rows(unchanged_rows, left_s)

        overlaid = {**fetched}
        for layout, rows in wanted.items():
            if is_changed[layout].any():
                overlaid[layout] = self._overlay(
                    layout, rows, is_changed[layout], fetched.get(layout)
                )
        return overlaid

    async def vectors(self, index: str, positions: Rows, left_s: float) -> Vectors:
        """Fetches vectors of the index as it was exported. Implements RemoteParts.vectors."""
        return await self._shards.vectors(index, positions, left_s)

    async def search(self, wanted: Any, left_s: float) -> tuple[Sequence[Any], float]:
        """Searches the index as it was exported. Implements RemoteParts.search."""
        return await self._shards.search(wanted, left_s)

    def _is_changed(self, layout: str, rows: Rows) -> NDArray[np.bool_]:
        is_changed = np.zeros(rows.size, np.bool_)
        for first, changed in self._changed_by_layout.get(layout, ()):
            is_changed |= changed.contains(rows - first)
        return is_changed

    def _overlay(
        self,
        layout: str,
        rows: Rows,
        is_changed: NDArray[np.bool_],
        fetched: FetchedRows | None,
    ) -> FetchedRows:
        """Returns rows of one layout, the changed ones with their new vectors.

        Args:
          layout: The name of the layout.
          rows: [n], the rows.
          is_changed: [n], whether each row is changed.
          fetched: The rows that are not changed, from shards; None: there are none.
        """
        tables = self._changed_by_layout[layout]
        dim = tables[0][1].dim
        vectors = np.empty((rows.size, dim), np.float32)
        lost = None
        lost_by_table: Mapping[str, int] = {}
        if fetched is not None:
            vectors[~is_changed] = fetched.vectors
            lost_by_table = fetched.lost_by_table
            if fetched.lost is not None:
                lost = np.zeros(rows.size, np.bool_)
                lost[~is_changed] = fetched.lost
        # The tables of a layout are numbered together, each from its first row on.
        for first, changed in tables:
            positions, stored = changed.find(rows - first)
            changed.write(stored, positions, vectors)
        return FetchedRows(rows, vectors, lost, lost_by_table)


def stored_vectors(index: ServedIndex, positions: Rows) -> Vectors:
    """Returns vectors of an index as it was exported, from here or from shards; waits for them.

    Args:
      index: The index.
      positions: [m] int64, each among the candidates of the bundle.

    Returns:
      [m, dim] float32, owned by the caller.

    Raises:
      ServiceError: A shard that holds some of these candidates does not respond.
    """
    if index.here is not None:
        return np.array(index.here.vectors[positions], np.float32)
    assert index.shards is not None  # noqa: S101 - else the index is here
    if not positions.size:
        return np.empty((0, index.entry.dim), np.float32)
    vectors: Vectors = completed(index.shards.vectors(index.name, positions, math.inf))
    return np.array(vectors, np.float32)
