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
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from bundle.changes.file import FILE_NAME, ChangesFile
from bundle.changes.fitting import NO_PLACE, fit
from bundle.changes.states import WHOLE, Key, Kind, State, changed_items
from bundle.errors import BundleError, ChangesUnavailable
from bundle.format import manifest
from bundle.format.changes_position import ChangesPosition
from bundle.storage import arrow
from bundle.stores.batches import ATTRIBUTE
from bundle.stores.overlay import StoreOverlay, StoreSnapshot
from bundle.stores.reader import CandidateStore
from export.errors import NotConvertible, UsageError

SECTIONS: Mapping[str, Kind] = {"corpora": "candidates", "contexts": "contexts"}
"""Kinds of changes by the section of the recipe that names their targets."""


@dataclass(frozen=True)
class StoreChanges:
    """The states of one store in a changes file that belong into a bundle.

    Attributes:
      states: The states, ascending, of attributes that the store has alone.
      later_ids: The ids of entries that were changed since: how they were then is not known.
    """

    states: Sequence[State]
    later_ids: Collection[Key] = ()

    def key_parts(self) -> Any:
        """Returns what decides the changes."""
        return [list(state) for state in self.states]


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

    def of(self, section: str, name: str, attributes: Collection[str]) -> StoreChanges:
        """Returns the changes of one store that belong into a bundle.

        Args:
          section: `corpora` or `contexts`.
          name: The name of the store.
          attributes: Its attributes.
        """
        owner = SECTIONS[section], name
        later_ids = {key for kind, store, key in self.later if (kind, store) == owner}
        return StoreChanges(
            [
                state
                for state in self._included
                if (state.kind, state.store) == owner
                and state.id not in later_ids
                and (state.attribute == WHOLE or state.attribute in attributes)
            ],
            later_ids,
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
        return [
            state for state in self.states if (state.kind, state.store, state.id) not in left_out
        ]

    def notes(self, stores: Mapping[str, Mapping[str, Collection[str]]]) -> list[str]:
        """Returns the lines of a report on the changes that are in the bundle, and on those that
        are not, or not whole.

        Args:
          stores: The attributes of the stores of the bundle, by section and name.
        """
        notes = []
        for section, attributes_by_name in stores.items():
            for name, attributes in attributes_by_name.items():
                kind = SECTIONS[section]
                states = [
                    state for state in self._included if (state.kind, state.store) == (kind, name)
                ]
                ids = {state.id for state in states}
                if ids and self.last is not None:
                    notes.append(
                        f"{section}.{name}: the changes of {len(ids):,} entries from "
                        f"{self.path.name}, up to sequence {self.last.sequence}"
                    )
                set_names = Counter(attribute for state in states for attribute in _set_by(state))
                notes += [
                    f"{section}.{name}: {self.path.name} sets attribute {attribute!r} of "
                    f"{count:,} entries, which the recipe does not have"
                    for attribute, count in sorted(set_names.items())
                    if attribute not in attributes
                ]
        reasons = Counter(
            reason for state in self.states if (reason := _reason_not_included(state, stores))
        )
        notes += [
            f"{self.path.name}: {count:,} entries are not in the bundle: {reason}"
            for reason, count in sorted(reasons.items())
        ]
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
    file = ChangesFile(path, model)
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
      NotConvertible: A change does not fit the store, or no entry is left; names an id.
      OSError: The file cannot be written.
    """
    import pyarrow as pa

    if not changes.states:
        return corpus
    # Entries that no change names are copied batch by batch, so that memory holds the others alone.
    path = base / corpus.file
    keys = {state.id for state in changes.states}
    table, release = arrow.open_trusted(path)
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
        changed = _changed(pa.Table.from_batches(touched), corpus, changes.states, name, file)
        for batch in changed.to_batches():
            writer.write_batch(batch)
            count += batch.num_rows
    if not count:
        changed_path.unlink()
        raise NotConvertible(f"{name}: {file} deletes every entry; at least one was expected")
    # The store is replaced only by a whole file.
    changed_path.replace(path)
    return corpus.model_copy(update={"size": count})


def _changed(
    touched: Any, corpus: manifest.Corpus, states: Sequence[State], name: str, file: str
) -> Any:
    """Returns some entries of a store as changes leave them, a `pyarrow.Table`."""
    import pyarrow as pa

    # The entries are changed by the code of the service, which reads a store from a file.
    with tempfile.TemporaryDirectory(prefix="changes-") as directory:
        path = Path(directory, "touched")
        arrow.write(path, touched)
        entry = corpus.model_copy(update={"size": touched.num_rows})
        overlay = StoreOverlay(CandidateStore(path, entry), entry)
        owner = states[0].kind, states[0].store
        items = changed_items(states, 0, 0, {owner: corpus.attributes})[owner]
        fitted = fit(items, overlay)
        for reason, ids in fitted.lost.items():
            # What attributes the recipe lacks, the report says.
            if len(ids) and not reason.startswith(NO_PLACE):
                raise NotConvertible(
                    f"{name}: the change of {ids[0]!r} in {file} does not fit ({reason}); export "
                    "without --with-changes, or change the recipe"
                )
        overlay.upsert(pa.record_batch({**fitted.columns}), fitted.expires_s)
        overlay.delete(fitted.deleted)
        store: StoreSnapshot = overlay.store
        # Entries end where a change deletes them, or replaces them by a later entry.
        positions = np.setdiff1d(np.arange(store.size), store.ended)
        columns = store.arrays(positions, touched.column_names)
        return pa.Table.from_pydict(columns, schema=touched.schema)


def _set_by(state: State) -> list[str]:
    """Returns the attributes that a state sets."""
    if state.content is None:
        return []
    values = orjson.loads(state.content)
    if state.attribute != WHOLE:
        return [] if values is None else [state.attribute]
    return [
        column.removeprefix(ATTRIBUTE)
        for column, value in values.items()
        if column.startswith(ATTRIBUTE) and value is not None
    ]


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
