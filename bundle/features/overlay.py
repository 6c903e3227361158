"""Tables that change while they are served: what features read of them in one state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from bundle.features.sources import RowReader, SideBySide
from bundle.tables.changed_rows import ChangedRows
from bundle.tables.combiner import Combiner, Vectors, Weights, combine_rows
from bundle.tables.id_values import Rows
from bundle.tables.new_keys import NewKeys
from bundle.tables.offsets import Offsets, lengths_of, offsets_of


class OverlaidRows:
    """Rows of a table, or of small tables side by side, some of which are changed; reads as a
    TableReader does.
    """

    native = None

    def __init__(self, stored: RowReader, changed: ChangedRows) -> None:
        """Lays changed rows over stored ones.

        Args:
          stored: The reader of the rows in the files.
          changed: The changed rows.
        """
        self._stored = stored
        self._changed = changed

    def take(self, rows: Rows) -> Vectors:
        """See TableReader.take."""
        positions, changed = self._changed.find(rows)
        # Changed rows are not read from the files, whose memory may be far away: -1 gives zeros.
        if positions.size:
            rows = rows.copy()
            rows[positions] = -1
        vectors: Vectors = self._stored.take(rows)
        self._changed.write(changed, positions, vectors)
        return vectors

    def bags(
        self, rows: Rows, offsets: Offsets, combiner: Combiner, weights: Weights | None = None
    ) -> Vectors:
        """See TableReader.bags."""
        # Bags with changed rows are those over which the running count of such rows grows.
        counts = offsets_of(self._changed.contains(rows))[offsets]
        has_changes = counts[1:] > counts[:-1]
        if not has_changes.any():
            return self._stored.bags(rows, offsets, combiner, weights)
        if has_changes.all():
            return combine_rows(self.take, rows, offsets, combiner, weights)

        # Compiled code combines the other bags to the bits that `combine_rows` gives.
        combined: Vectors = self._stored.bags(rows, offsets, combiner, weights)
        lengths = lengths_of(offsets)
        is_read = has_changes.repeat(lengths)
        if weights is not None:
            weights = weights[is_read]
        changed_offsets = offsets_of(lengths[has_changes])
        combined[has_changes] = combine_rows(
            self.take, rows[is_read], changed_offsets, combiner, weights
        )
        return combined


class MergedRows(NamedTuple):
    """The changed rows of small tables that lie side by side.

    Attributes:
      by_first: The changed rows of each changed table, by where its row 0 is.
      rows: All of them, as rows of the tables side by side.
    """

    by_first: Mapping[int, ChangedRows]
    rows: ChangedRows


class Overlay:
    """The changed rows of all tables of a reader in one state. Safe for any number of threads.

    Attributes:
      by_table: The changed rows of each TableReader, at least one row of each.
      new_keys: The keys that a TableReader or RemoteTable has got, at least one of each.
    """

    def __init__(
        self,
        by_table: Mapping[object, ChangedRows],
        new_keys: Mapping[object, NewKeys],
        latest: dict[SideBySide, MergedRows],
    ) -> None:
        """Begins a state.

        Args:
          by_table: The changed rows of each TableReader, at least one row of each.
          new_keys: The keys that a TableReader or RemoteTable has got, at least one of each. The
            rows of a TableReader's keys are changed rows, too.
          latest: What another state has merged, of which this one merges the differences alone;
            kept up to date.
        """
        self.by_table = by_table
        self.new_keys = new_keys
        self._latest = latest
        self._merged: dict[SideBySide, ChangedRows] = {}

    def reader(self, stored: RowReader) -> RowReader | OverlaidRows:
        """Returns what reads the rows of a source in this state; the source itself if none of its
        rows is changed.
        """
        changed = self.by_table.get(stored)
        if isinstance(stored, SideBySide):
            changed = self._rows_side_by_side(stored)
        if changed is None or not changed.count:
            return stored
        return OverlaidRows(stored, changed)

    def _rows_side_by_side(self, tables: SideBySide) -> ChangedRows:
        """Returns the changed rows of small tables, as rows of the tables side by side.

        They are merged when they are first read: most states are replaced before.
        """
        rows = self._merged.get(tables)
        if rows is None:
            by_first = {}
            for table, first in tables.firsts.items():
                changed = self.by_table.get(table)
                # The rows of new keys would be those of the next table. Nothing reads a table that
                # has any among the others.
                if changed is not None and table not in self.new_keys:
                    by_first[first] = changed
            merged = _merge(by_first, self._latest.get(tables), tables)
            self._latest[tables] = merged
            rows = merged.rows
            self._merged[tables] = rows
        return rows


def _merge(
    by_first: Mapping[int, ChangedRows], before: MergedRows | None, tables: SideBySide
) -> MergedRows:
    """Merges the changed rows of tables that lie side by side.

    Args:
      by_first: The changed rows of each table, by where its row 0 is.
      before: Another state; None: there is none.
      tables: The tables.
    """
    # Rows can be added to a state, but not taken away: one that changed fewer begins anew.
    merged_before: Mapping[int, ChangedRows] = {}
    rows = ChangedRows.none(tables.dtype, tables.dim)
    if before is not None and _replaces_all(by_first, before.by_first):
        merged_before = before.by_first
        rows = before.rows
    for first, changed in by_first.items():
        if changed is not merged_before.get(first):
            changed_rows = changed.rows
            _, stored = changed.find(changed_rows)
            rows = rows.with_rows(changed_rows + first, stored)
    return MergedRows(by_first, rows)


def _replaces_all(by_first: Mapping[int, ChangedRows], before: Mapping[int, ChangedRows]) -> bool:
    """Returns whether every row that was changed in a state before is changed."""
    for first, changed_before in before.items():
        changed = by_first.get(first)
        if changed is None:
            return False
        if changed is not changed_before and not changed.contains(changed_before.rows).all():
            return False
    return True
