"""The changed rows of a loaded version, and the rows that new keys have got."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.features.columns import Column
from bundle.format.manifest import EmbeddedFeature, KeyedIds, inputs_of
from bundle.tables.changed_rows import ChangedRows
from bundle.tables.id_values import integers
from bundle.tables.new_keys import NewKeys
from bundle.tables.stored_rows import StoredRows
from service.engine import lookup
from service.versions.version import ModelVersion

Ids = NDArray[Any]
Rows = NDArray[np.int64]


class ChangedTables:
    """The changed rows of all tables of a version. One thread at a time changes them.

    Attributes:
      rows: The changed rows of each table that has some.
      new_keys: The keys that have got rows behind the files, of each table that has such keys.
    """

    def __init__(self, loaded: ModelVersion) -> None:
        """Begins without changes; `loaded`: the version as it was loaded."""
        self.rows: dict[str, ChangedRows] = {}
        self.new_keys: dict[str, NewKeys] = {}
        self._loaded = loaded

    def of(self, table: str) -> ChangedRows:
        """Returns the changed rows of a table."""
        changed = self.rows.get(table)
        if changed is None:
            entry = self._loaded.manifest.tables[table]
            changed = ChangedRows.none(entry.dtype, entry.dim)
        return changed

    def rows_of(self, ids: Ids, feature: str) -> Rows:
        """Returns the rows that ids stand for, -1 for unknown ids.

        Args:
          ids: [m], the ids as clients send them.
          feature: The feature by whose rule ids become rows; "": the ids are rows.

        Raises:
          FeatureError: A value is no id of the feature.
        """
        if not feature:
            return np.asarray(ids, np.int64)
        name, entry = lookup.embedded_feature(self._loaded, feature)
        (input_name,) = inputs_of(name, entry)
        rows, _ = self._loaded.reader.rows(name, {input_name: Column(ids)}, ids.size)
        # The reader knows the keys of the bundle; keys that came later are found here.
        new_keys = self.new_keys.get(entry.table)
        if new_keys is not None and self.takes_keys(feature):
            is_unknown = rows < 0
            rows[is_unknown] = new_keys.find(integers(input_name, ids[is_unknown]))
        return rows

    def takes_keys(self, feature: str) -> bool:
        """Returns whether the table of a feature gives rows to ids that it does not know."""
        if not feature:
            return False
        _, entry = lookup.embedded_feature(self._loaded, feature)
        return self._takes_keys(entry)

    def key_feature(self, table: str) -> str:
        """Returns the name of a feature by which a table takes new keys; "": it takes none."""
        for name, entry in self._loaded.manifest.features.items():
            if not isinstance(entry, EmbeddedFeature) or entry.table != table:
                continue
            if self._takes_keys(entry):
                return name
        return ""

    def change(self, table: str, rows: Rows, stored: StoredRows) -> None:
        """Gives rows of a table other vectors.

        Args:
          table: The name of the table.
          rows: [n], the rows. The last one of duplicates counts.
          stored: The n rows in the log.
        """
        self.rows[table] = self.of(table).with_rows(rows, stored)

    def with_new_rows(self, table: str, rows: Rows) -> Rows:
        """Returns the rows of keys, where those that have none yet get the next rows of the table;
        `add_keys` gives them to the keys.

        Args:
          table: The name of the table.
          rows: [n], the row of each key; -1: it has none.
        """
        is_new = rows < 0
        all_rows = rows.copy()
        all_rows[is_new] = np.arange(np.count_nonzero(is_new)) + self._keys_of(table).end_row
        return all_rows

    def add_keys(self, table: str, keys: NDArray[np.int64], rows: Rows) -> None:
        """Gives keys rows of a table.

        Args:
          table: The name of the table.
          keys: [n], the keys. A key that comes several times has the same row each time.
          rows: [n], the row of each key, as `with_new_rows` returns them: behind the last row of
            the table if the key is new.
        """
        new_keys = self._keys_of(table)
        is_new = rows >= new_keys.end_row
        if is_new.any():
            # By their rows, which are in the order in which the keys came.
            _, firsts = np.unique(rows[is_new], return_index=True)
            self.new_keys[table] = new_keys.with_keys(keys[is_new][firsts])

    def _keys_of(self, table: str) -> NewKeys:
        new_keys = self.new_keys.get(table)
        if new_keys is None:
            new_keys = NewKeys.none(self._loaded.manifest.tables[table].rows)
        return new_keys

    def _takes_keys(self, entry: EmbeddedFeature) -> bool:
        keys_by_table = self._loaded.reader.growing_tables
        return isinstance(entry.ids, KeyedIds) and keys_by_table.get(entry.table) == entry.ids.keys
