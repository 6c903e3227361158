"""The entries that a store must hold after the changes of a log, derived one by one from the files
and the log, without the code that changes stores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.changes.records import Change
from export.corpora.files import read_corpus_file
from export.recipe.schema import CorpusSection
from rows.files import SourceFile

Positions = NDArray[np.int64]
Key = int | str


@dataclass
class ChangedEntry:
    """An entry that a log names.

    Attributes:
      key: The entry's id.
      row: The entry's position in the files, which have its features; None: the log has them.
      values: The logged values, by column of the store, such as `attribute:title`.
    """

    key: Key
    row: int | None
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ExpectedStore:
    """The entries that a store must hold, in its order.

    Attributes:
      rows: [u] positions in the files of the entries that no change names; they come first.
      changed: Entries that changes name, behind the unchanged ones.
    """

    rows: Positions
    changed: Sequence[ChangedEntry]


def expected_store(
    files: Sequence[SourceFile],
    name: str,
    section: CorpusSection,
    changes: Sequence[tuple[int, Change]],
    is_text: bool,
) -> ExpectedStore:
    """Returns the entries that a store must hold.

    Args:
      files: The files of the corpus.
      name: The name of the corpus.
      section: The section of the recipe for the corpus.
      changes: The changes of the corpus' log, with their sequences.
      is_text: Whether the ids are strings.
    """
    changed_keys = set()
    for _, change in changes:
        changed_keys.update(change.columns.column("id").to_pylist())

    rows: list[int] = []
    changed: dict[Key, ChangedEntry] = {}
    position = 0
    for file in files:
        for batch in read_corpus_file(file, name, section, {section.id: f"{name}.id"}):
            for cell in batch.columns[section.id].to_pylist():
                key = _key_of(cell, is_text)
                if key in changed_keys:
                    changed[key] = ChangedEntry(key, position)
                else:
                    rows.append(position)
                position += 1
    for _, change in changes:
        for logged in change.columns.to_pylist():
            _apply(changed, change.head.action, logged)
    return ExpectedStore(np.array(rows, np.int64), list(changed.values()))


def _key_of(cell: Any, is_text: bool) -> Key:
    # A tf.train.Example has lists only.
    value = cell[0] if isinstance(cell, list) else cell
    if is_text:
        return str(value)
    return int(value)


def _apply(changed: dict[Key, ChangedEntry], action: str, logged: dict[str, Any]) -> None:
    """Applies a change of one entry; an entry that changes becomes the last one."""
    key = logged["id"]
    entry = changed.pop(key, None)
    if action == "upsert":
        changed[key] = ChangedEntry(key, None, logged)
    elif action == "attributes" and entry is not None:
        # An entry that was deleted before has no attributes to change.
        entry.values |= logged
        changed[key] = entry
