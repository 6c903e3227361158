"""Applies the changes that a service was sent since the last export to the stores of the next one.

A store is written from the recipe's files first. Then the entries that the changes file names are
taken out of it, changed, and put behind the others, in the order in which they were last changed.
Memory holds these entries alone.

Left to the service, which reads the file for the new version, too:
- Candidates whose vectors were sent: these belong to the version for which they were sent.
- Candidates that expire: a bundle knows no expiry.
"""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from bundle.changes.file import FILE_NAME, ChangesFile
from bundle.changes.fitting import Lost, fit, no_place, unfit
from bundle.changes.states import VECTOR, WHOLE, ChangedItem, Key, Kind, State, changed_items
from bundle.errors import BundleError, ChangesUnavailable
from bundle.format import manifest
from bundle.format.changes_position import ChangesPosition
from bundle.storage import arrow
from bundle.stores.attributes import AttributeMisfit, checked_value
from bundle.stores.batches import ATTRIBUTE
from bundle.stores.overlay import StoreOverlay
from bundle.stores.reader import CandidateStore
from export.errors import NotConvertible, UsageError

SECTIONS: Mapping[str, Kind] = {"corpora": "candidates", "contexts": "contexts"}
"""Kinds of changes by the section of the recipe that names their targets."""


@dataclass(frozen=True)
class StoreChanges:
    """The states of one store in a changes file that belong into a bundle.

    Attributes:
      states: The states, ascending.
      later_ids: The ids of entries that were changed since: how they were then is not known.
    """

    states: Sequence[State] = ()
    later_ids: Collection[Key] = ()

    def key_parts(self) -> Any:
        """Returns what decides the changes."""
        return [list(state) for state in self.states]

    def fitted(self, types: Mapping[str, Any]) -> tuple[list[State], Lost]:
        """Returns the states that a store takes, and the ids of what it does not take, or not
        whole, by the reason.

        Args:
          types: The `pyarrow.DataType` of each column of the store.
        """
        upserts = [
            ChangedItem.of(state.id, state, [])
            for state in self.states
            if state.attribute == WHOLE and state.content is not None
        ]
        reasons = unfit(upserts, types)
        lost: defaultdict[str, list[Key]] = defaultdict(list)
        taken = []
        for state in self.states:
            if state.attribute == WHOLE and state.id in reasons:
                lost[reasons[state.id]].append(state.id)
                continue
            values = orjson.loads(state.content or "{}")
            if state.attribute != WHOLE:
                values = {f"{ATTRIBUTE}{state.attribute}": orjson.loads(state.content or "null")}
            kept = {
                column: value for column, value in values.items() if _takes(types, column, value)
            }
            for column in values.keys() - kept.keys():
                if values[column] is not None and not column.startswith(VECTOR):
                    lost[no_place(column)].append(state.id)
            if state.attribute == WHOLE and state.content is not None:
                taken.append(state._replace(content=orjson.dumps(kept).decode()))
            elif len(kept) == len(values):
                taken.append(state)
        return taken, lost


@dataclass(frozen=True)
class ServedChanges:
    """The changes of a model that its service was sent.

    Attributes:
      path: The path of the changes file.
      last: The last state; None: there are no changes.
      states: The states of candidates and contexts up to this one, ascending.
      later: The kinds, stores and ids of what was changed since.
    """

    path: Path
    last: ChangesPosition | None
    states: Sequence[State]
    later: Collection[tuple[str, str, Key]] = ()

    def of(self, section: str, name: str) -> StoreChanges:
        """Returns the changes of one store that belong into a bundle.

        Args:
          section: `corpora` or `contexts`.
          name: The name of the store.
        """
        owner = SECTIONS[section], name
        return StoreChanges(
            [state for state in self._included if (state.kind, state.store) == owner],
            {key for kind, store, key in self.later if (kind, store) == owner},
        )

    def deleted(self, corpus: str) -> set[Key]:
        """Returns the ids of candidates that were deleted."""
        return {
            state.id
            for state in self._included
            if (state.kind, state.store, state.attribute) == ("candidates", corpus, WHOLE)
            and state.content is None
        }

    @cached_property
    def _included(self) -> list[State]:
        """The states that belong into a bundle."""
        # If an entry as a whole is left to the service, its attributes are, too.
        left_out = {
            (state.kind, state.store, state.id) for state in self.states if state.is_left_out
        }
        left_out.update(self.later)
        return [
            state for state in self.states if (state.kind, state.store, state.id) not in left_out
        ]

    def notes(self, stores: Mapping[str, Collection[str]]) -> list[str]:
        """Returns the lines of a report on the changes that no store of a bundle holds.

        Args:
          stores: The names of the stores of the bundle by section.
        """
        reasons = Counter(
            reason for state in self.states if (reason := _reason_not_included(state, stores))
        )
        return [
            f"{self.path.name}: {count:,} entries are not in the bundle: {reason}"
            for reason, count in sorted(reasons.items())
        ]

    def notes_of(self, section: str, name: str, types: Mapping[str, Any]) -> list[str]:
        """Returns the lines of a report on the changes that a store holds, and on those that it
        does not hold, or not whole; `types`: see `StoreChanges.fitted`.
        """
        changes = self.of(section, name)
        if not changes.states or self.last is None:
            return []
        taken, lost = changes.fitted(types)
        where = f"{section}.{name}"
        ids = {state.id for state in taken}
        notes = [
            f"{where}: the changes of {len(ids):,} entries from {self.path.name}, up to sequence "
            f"{self.last.sequence}"
        ]
        for reason, keys in sorted(lost.items()):
            notes.append(
                f"{where}: the changes of {len(keys):,} entries in {self.path.name}, first of "
                f"{keys[0]!r}, are not in the bundle, or not whole: {reason}"
            )
        return notes


def read_changes(path: Path, model: str, last: ChangesPosition | None = None) -> ServedChanges:
    """Reads a changes file.

    Args:
      path: The file, or a copy of it.
      model: The name of the model that it must be of.
      last: The last state that is read; None: all are.

    Raises:
      UsageError: There is no such file, or it cannot be read.
      NotConvertible: The file is damaged, or is that of another model.
    """
    if not path.is_file():
        raise UsageError(
            f"--with-changes {path} is no file; the changes of a model were expected, such as "
            f"ROOT/{model}/{FILE_NAME} of its service"
        )
    file = ChangesFile(path, model, only_read=True)
    try:
        position, states = file.everything()
        is_known = last is not None and file.has(last)
    except ChangesUnavailable as problem:
        raise UsageError(f"--with-changes: {problem}") from problem
    except BundleError as problem:
        raise NotConvertible(str(problem)) from problem
    finally:
        file.close()
    if last is None or not is_known:
        return ServedChanges(path, position, states)
    later = {
        (state.kind, state.store, state.id) for state in states if state.sequence > last.sequence
    }
    states = [state for state in states if state.sequence <= last.sequence]
    return ServedChanges(path, last, states, later)


def fold(
    base: Path, corpus: manifest.Corpus, changes: StoreChanges, name: str, file: str
) -> manifest.Corpus:
    """Applies changes to a store that was written; its file is replaced.

    Args:
      base: The directory of the bundle that is being written.
      corpus: The entry of the store in the manifest.
      changes: The changes of the store.
      name: What the recipe calls the store, for messages.
      file: The name of the changes file, for messages.

    Returns:
      The entry of the changed store.

    Raises:
      NotConvertible: No entry is left.
      OSError: The file cannot be written.
    """
    import pyarrow as pa

    if not changes.states:
        return corpus
    path = base / corpus.file
    table, release = arrow.open_trusted(path)
    states, _ = changes.fitted({column.name: column.type for column in table.schema})
    if not states:
        return corpus
    # Entries that no change names are copied batch by batch, so that memory holds the others alone.
    keys = {state.id for state in states}
    changed_path = path.with_name(f"{path.name}.changed")
    touched = []
    count = 0
    with pa.ipc.new_file(str(changed_path), table.schema) as writer:
        for batch in table.to_batches():
            ids = batch.column("id").to_pylist()
            is_touched = np.array([key in keys for key in ids], bool)
            touched.append(batch.filter(pa.array(is_touched)))
            untouched = batch.filter(pa.array(~is_touched))
            if untouched.num_rows:
                writer.write_batch(untouched)
                count += untouched.num_rows
            # Drops the pages that were read, so that memory does not grow with the store.
            release()
        changed = _changed(pa.Table.from_batches(touched), corpus, states)
        for batch in changed.to_batches():
            writer.write_batch(batch)
            count += batch.num_rows
    if not count:
        changed_path.unlink()
        raise NotConvertible(f"{name}: {file} deletes every entry; at least one was expected")
    # The store is replaced only by a whole file.
    changed_path.replace(path)
    return corpus.model_copy(update={"size": count})


def _changed(touched: Any, corpus: manifest.Corpus, states: Sequence[State]) -> Any:
    """Returns some entries of a store as changes leave them, a `pyarrow.Table`."""
    import pyarrow as pa

    # The entries are changed by the code of the service, which reads a store from a file.
    with tempfile.TemporaryDirectory(prefix="changes-") as directory:
        path = Path(directory, "touched")
        arrow.write(path, touched)
        entry = corpus.model_copy(update={"size": touched.num_rows})
        overlay = StoreOverlay(CandidateStore(path, entry), entry)
        owner = states[0].kind, states[0].store
        fitted = fit(changed_items(states, 0, 0, {owner: corpus.attributes})[owner], overlay)
        overlay.upsert(pa.record_batch({**fitted.columns}), fitted.expires_s)
        overlay.delete(fitted.deleted)
        store = overlay.store
        # Entries end where a change deletes them, or replaces them by a later entry.
        positions = np.setdiff1d(np.arange(store.size), store.ended)
        columns = store.arrays(positions, touched.column_names)
        return pa.Table.from_pydict(columns, schema=touched.schema)


def _takes(types: Mapping[str, Any], column: str, value: Any) -> bool:
    """Returns whether a store has a place for a value; whether a feature fits, `unfit` says."""
    if column not in types or not column.startswith(ATTRIBUTE):
        return column in types
    try:
        checked_value(arrow.kind_of(types[column]), value)
    except AttributeMisfit:
        return False
    return True


def _reason_not_included(state: State, stores: Mapping[str, Collection[str]]) -> str:
    """Returns why the entry of a state is not in the bundle; "": it is, or a part of it is."""
    section = "contexts"
    if state.kind == "candidates":
        section = "corpora"
    if state.store not in stores[section]:
        return f"the recipe has no {section}.{state.store}"
    if state.is_sent:
        return "vectors belong to the version for which they were sent"
    if state.expires_s is not None:
        return "a bundle knows no expiry; the service reads them from the file"
    return ""
