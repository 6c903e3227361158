"""Finds the dependents of rows of a table: the candidates that read them, whose vectors change."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from bundle.features.reader import FeatureReader
from bundle.format.manifest import EmbeddedFeature, Manifest
from bundle.stores.overlay import StoreSnapshot
from bundle.tables.id_values import distinct

Rows = NDArray[np.int64]
Keys = NDArray[np.int64]
Positions = NDArray[np.int64]
_CHUNK = 65_536
"""Number of candidates whose ids become rows at a time, which bounds the memory of columns."""
_UNSORTED_MAX = 10_000
"""Number of pairs of row and position that are searched one after the other before all pairs are
sorted: to sort for each change would take longer.
"""


class RowDependents:
    """The candidates of a corpus by the rows that some features of theirs read.

    A key that the files of the table do not have may get a row. So it stands for itself: `~key`,
    which is negative and no row.
    """

    def __init__(
        self,
        manifest: Manifest,
        reader: FeatureReader,
        features: Sequence[str],
        stored: Collection[str],
    ) -> None:
        """Begins without candidates, which `positions` adds.

        Args:
          manifest: The manifest of the version.
          reader: Makes rows of ids, without changes.
          features: The features, which read one table.
          stored: The inputs that the corpus holds; the others have defaults.
        """
        self._manifest = manifest
        self._reader = reader
        self._features = features
        self._inputs = [name for name in manifest.inputs_of(features) if name in stored]
        self._size = 0
        self._rows: Rows = np.empty(0, np.int64)
        self._positions: Positions = np.empty(0, np.int64)
        self._new_rows: list[Rows] = []
        self._new_positions: list[Positions] = []

    def positions(self, store: StoreSnapshot, rows: Rows, keys: Keys) -> Positions:
        """Returns the live candidates that read one of some rows, by their ascending positions.

        Args:
          store: The candidates now; new ones are added first.
          rows: [m] int64, rows of the table. Negative ones, and those behind its files, are left
            alone.
          keys: The keys of rows behind its files.
        """
        self._add(store)
        read_rows = distinct(np.concatenate([~keys, rows[rows >= 0]]))
        first = self._rows.searchsorted(read_rows)
        end = self._rows.searchsorted(read_rows, side="right")
        spans = [self._positions[start:stop] for start, stop in zip(first, end, strict=True)]
        for new_rows, new_positions in zip(self._new_rows, self._new_positions, strict=True):
            spans.append(new_positions[np.isin(new_rows, read_rows)])
        # With an empty array, since there may be no span.
        positions = distinct(np.concatenate([*spans, np.empty(0, np.int64)]))
        # Candidates that ended are not removed from the pairs, but left out here.
        is_ended = np.isin(positions, store.ended)
        return positions[~is_ended]

    def forget_from(self, position: int) -> None:
        """Forgets the candidates from a position on: others have their positions now."""
        if self._size <= position:
            return
        self._sort()
        is_before = self._positions < position
        self._rows = self._rows[is_before]
        self._positions = self._positions[is_before]
        self._size = position

    def _add(self, store: StoreSnapshot) -> None:
        """Adds the candidates of a store that came since the last call."""
        for start in range(self._size, store.size, _CHUNK):
            positions = np.arange(start, min(start + _CHUNK, store.size))
            for rows, dependents in self._pairs(store, positions):
                self._new_rows.append(rows)
                self._new_positions.append(dependents)
        self._size = store.size
        if sum(rows.size for rows in self._new_rows) > _UNSORTED_MAX:
            self._sort()

    def _sort(self) -> None:
        """Sorts all pairs of row and position by their rows."""
        rows = np.concatenate([self._rows, *self._new_rows])
        dependents = np.concatenate([self._positions, *self._new_positions])
        order = np.argsort(rows, kind="stable")
        self._rows = rows[order]
        self._positions = dependents[order]
        self._new_rows = []
        self._new_positions = []

    def _pairs(
        self, store: StoreSnapshot, positions: Positions
    ) -> Iterator[tuple[Rows, Positions]]:
        """Yields rows that candidates read, and the position of the candidate that reads each."""
        columns = store.features(positions, self._inputs)
        for name in self._features:
            rows, offsets = self._reader.rows(name, columns, positions.size)
            lengths = np.diff(offsets)

            # Keys without a row, which they may get later.
            keys = self._reader.new_keys(name, columns, positions.size)
            if keys is not None:
                is_unknown = (rows < 0) & (keys >= 0)
                yield ~keys[is_unknown], positions.repeat(lengths)[is_unknown]

            # Rows that stand for unknown ids, empty lists and missing entries are read, too.
            feature = self._manifest.features[name]
            assert isinstance(feature, EmbeddedFeature)  # noqa: S101 - it reads a table
            if feature.unknown.row is not None:
                rows = np.where(rows < 0, feature.unknown.row, rows)
            is_row = rows >= 0
            yield rows[is_row], positions.repeat(lengths)[is_row]
            if feature.empty_row is not None:
                is_empty = lengths == 0
                empty_rows = np.full(np.count_nonzero(is_empty), feature.empty_row)
                yield empty_rows, positions[is_empty]
            if feature.filler_row is not None:
                yield np.full(positions.size, feature.filler_row), positions
