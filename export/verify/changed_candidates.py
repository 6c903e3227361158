"""What a store must hold after the changes of a log: worked out entry by entry, from the files and
the log, without the code that changes stores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.changes.records import Change
from export.corpora.files import CorpusFile, read_batches
from export.recipe.schema import CorpusSection

Positions = NDArray[np.int64]
Key = int | str


@dataclass
class ChangedEntry:
    """An entry that a log names.

    Attributes:
      key: Its id.
      row: Its position in the files, which have its features; None: the log has them.
      values: What the log says, by column of the store, such as `attribute:title`.
    """

    key: Key
    row: int | None
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ExpectedStore:
    """What a store must hold, in its order.

    Attributes:
      rows: [u] positions in the files of the entries that no change names; they come first.
      changed: The others, behind them.
    """

    rows: Positions
    changed: Sequence[ChangedEntry]


def expected_store(
    files: Sequence[CorpusFile],
    name: str,
    part: CorpusSection,
    changes: Sequence[tuple[int, Change]],
    is_text: bool,
) -> ExpectedStore:
    """Returns what a store must hold.

    Args:
      files: Of the corpus.
      name: Of the corpus.
      part: What the recipe says of it.
      changes: Of its log, with their sequences.
      is_text: Whether the ids are strings.
    """
    named = {key for _, change in changes for key in change.columns.column("id").to_pylist()}
    rows: list[int] = []
    touched: dict[Key, ChangedEntry] = {}
    position = 0
    for file in files:
        for batch in read_batches(file, name, part, [part.id]):
            for cell in batch.columns[part.id].to_pylist():
                value = cell[0] if isinstance(cell, list) else cell
                key: Key = str(value) if is_text else int(value)
                if key in named:
                    touched[key] = ChangedEntry(key, position)
                else:
                    rows.append(position)
                position += 1
    for _, change in changes:
        for item in change.columns.to_pylist():
            _apply(touched, change.head.action, item)
    return ExpectedStore(np.array(rows, np.int64), list(touched.values()))


def _apply(touched: dict[Key, ChangedEntry], action: str, item: dict[str, Any]) -> None:
    """Applies a change of one entry; an entry that changes becomes the last one."""
    key = item["id"]
    before = touched.pop(key, None)
    if action == "upsert":
        touched[key] = ChangedEntry(key, None, item)
    elif action == "attributes" and before is not None:
        before.values |= item
        touched[key] = before
