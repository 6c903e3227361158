"""The entries that a store must hold after the changes of its service, derived one by one from the
files and the changes, without the code that changes stores.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.storage import arrow
from export.corpora.changes import StoreChanges
from export.corpora.files import read_corpus_file
from export.recipe.schema import CorpusSection
from rows.files import SourceFile

Positions = NDArray[np.int64]
Key = int | str


@dataclass
class ChangedEntry:
    """An entry that was changed.

    Attributes:
      key: The entry's id.
      row: The entry's position in the files, which have its features; None: the changes have them.
      values: The changed values, by column of the store, such as `attribute:title`.
      sequence: The sequence of its last state.
      is_deleted: Whether it was deleted, or never was there.
    """

    key: Key
    row: int | None = None
    values: dict[str, Any] = field(default_factory=dict)
    sequence: int = 0
    is_deleted: bool = True


@dataclass(frozen=True)
class ExpectedStore:
    """The entries that a store must hold, in its order, but for those that are not known.

    Attributes:
      rows: [u] positions in the files of the entries that no change names; they come first.
      changed: Entries that were changed, behind the unchanged ones.
    """

    rows: Positions
    changed: Sequence[ChangedEntry]


def expected_store(
    files: Sequence[SourceFile],
    name: str,
    section: CorpusSection,
    changes: StoreChanges,
    types: Mapping[str, Any],
) -> ExpectedStore:
    """Returns the entries that a store must hold.

    Args:
      files: The files of the corpus.
      name: The name of the corpus.
      section: The section of the recipe for the corpus.
      changes: The changes of the corpus.
      types: The `pyarrow.DataType` of each column of the store.
    """
    # What does not fit the store is not in it, as the report says.
    states, _ = changes.fitted(types)
    is_text = arrow.kind_of(types["id"]) == "string"
    changed = {state.id: ChangedEntry(state.id) for state in states}
    rows: list[int] = []
    position = 0
    for file in files:
        for batch in read_corpus_file(file, name, section, {section.id: f"{name}.id"}):
            for cell in batch.columns[section.id].to_pylist():
                key = _key_of(cell, is_text)
                if key in changed:
                    changed[key] = ChangedEntry(key, position, is_deleted=False)
                elif key not in changes.later_ids:
                    rows.append(position)
                position += 1
    # An attribute may have a state before the one of its entry as a whole, of a later number.
    for state in sorted(states, key=lambda state: state.attribute):
        entry = changed[state.id]
        entry.sequence = max(entry.sequence, state.sequence)
        if state.attribute:
            entry.values[f"attribute:{state.attribute}"] = json.loads(state.content or "null")
        else:
            entry.row = None
            entry.is_deleted = state.content is None
            entry.values = json.loads(state.content or "{}")
    present = [entry for entry in changed.values() if not entry.is_deleted]
    present.sort(key=lambda entry: entry.sequence)
    return ExpectedStore(np.array(rows, np.int64), present)


def _key_of(cell: Any, is_text: bool) -> Key:
    # A tf.train.Example has lists only.
    value = cell[0] if isinstance(cell, list) else cell
    if is_text:
        return str(value)
    return int(value)
