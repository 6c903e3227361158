"""Applies the changes that a service was sent since the last export to the stores of the next one.

A store is written from the recipe's files first. Then the entries that the change log names are
taken out of it, changed, and put behind the others, in the order in which they were last changed.
Memory holds these entries alone.

Left to the service, which reads the log for the new version, too, with all changes of theirs:
- Candidates whose vectors were sent: these belong to the version for which they were sent.
- Candidates that expire: a bundle knows no expiry.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bundle.changes.log import ChangeLog
from bundle.changes.records import (
    EXPIRES,
    Change,
    Kind,
    decode,
    left_out_ids,
)
from bundle.errors import BundleError
from bundle.format import manifest
from bundle.format.log_position import LogPosition
from bundle.storage import arrow
from bundle.stores.batches import ATTRIBUTE, fitted_batch, with_null_attributes
from bundle.stores.overlay import StoreOverlay, StoreSnapshot
from bundle.stores.reader import CandidateStore
from export.errors import NotConvertible, UsageError

SECTIONS: Mapping[str, Kind] = {"corpora": "candidates", "contexts": "contexts"}
"""Kinds of changes by the section of the recipe that names their targets."""


@dataclass(frozen=True)
class LoggedChanges:
    """The changes of a model in its log.

    Attributes:
      path: The path of the log.
      last: The last change; None: there are no changes.
      digest: The SHA-256 of all changes, in hexadecimal.
      changes: The changes with their sequence numbers, in their order.
    """

    path: Path
    last: LogPosition | None
    digest: str
    changes: Sequence[tuple[int, Change]]

    def key_parts(self) -> Any:
        """Returns what decides the changes."""
        return self.digest

    def of(self, section: str, name: str) -> list[tuple[int, Change]]:
        """Returns the changes of one store that belong into a bundle, by their sequences.

        Args:
          section: `corpora` or `contexts`.
          name: The name of the store.
        """
        kind = SECTIONS[section]
        changes = [
            (sequence, change)
            for sequence, change in self.changes
            if (change.head.kind, change.head.target) == (kind, name)
        ]
        # If any change of an entry is left to the service, all are: the others alone would give
        # another entry.
        left_out = left_out_ids(change for _, change in changes)
        folded = []
        for sequence, change in changes:
            is_included = [key not in left_out for key in change.ids.tolist()]
            folded.append((sequence, change.only(np.array(is_included, bool))))
        return [(sequence, change) for sequence, change in folded if change.size]

    def deleted(self, corpus: str) -> set[Any]:
        """Returns the ids of candidates that some change deletes."""
        ids: set[Any] = set()
        for _, change in self.of("corpora", corpus):
            if change.head.action == "delete":
                ids.update(change.ids.tolist())
        return ids

    def notes(self, stores: Mapping[str, Mapping[str, Collection[str]]]) -> list[str]:
        """Returns the lines of a report on the changes of the log that are in the bundle, and on
        those that are not, or not whole.

        Args:
          stores: The attributes of the stores of the bundle, by section and name.
        """
        notes = []
        for section, attributes_by_name in stores.items():
            for name, attributes in attributes_by_name.items():
                changes = self.of(section, name)
                ids = {key for _, change in changes for key in change.ids.tolist()}
                if ids and self.last is not None:
                    notes.append(
                        f"{section}.{name}: {len(changes):,} changes of {len(ids):,} entries from "
                        f"{self.path.name}, up to sequence {self.last.sequence}"
                    )
                left_out = Counter(
                    column.removeprefix(ATTRIBUTE)
                    for _, change in changes
                    for column, values in zip(
                        change.columns.schema.names, change.columns.columns, strict=True
                    )
                    if column.startswith(ATTRIBUTE) and values.null_count < len(values)
                )
                notes += [
                    f"{section}.{name}: {count:,} changes of {self.path.name} set attribute "
                    f"{attribute!r}, which the recipe does not have"
                    for attribute, count in sorted(left_out.items())
                    if attribute not in attributes
                ]
        reasons = Counter(
            reason for _, change in self.changes if (reason := _reason_not_included(change, stores))
        )
        notes += [
            f"{self.path.name}: {count:,} changes are not in the bundle: {reason}"
            for reason, count in sorted(reasons.items())
        ]
        return notes


def read_changes(path: Path, model: str, last: LogPosition | None = None) -> LoggedChanges:
    """Reads a change log.

    Args:
      path: The log.
      model: The name of the model whose log it must be.
      last: The last change that is read; None: all are.

    Raises:
      UsageError: There is no such file, or it cannot be read.
      NotConvertible: The log is damaged, or is that of another model.
    """
    if not path.is_file():
        raise UsageError(
            f"--with-changes {path} is no file; the change log of a model was expected, such as "
            f"ROOT/{model}/changes.log of its service"
        )
    try:
        log = ChangeLog(path, model)
        records = [
            record for record in log.read() if last is None or record.sequence <= last.sequence
        ]
        changes = [(record.sequence, decode(record.payload)) for record in records]
    except BundleError as problem:
        raise NotConvertible(str(problem)) from problem
    except OSError as problem:
        raise UsageError(f"--with-changes {path} cannot be read: {problem.strerror}") from problem
    digest = hashlib.sha256()
    for record in records:
        digest.update(record.payload)
    position = None
    if records:
        end = records[-1]
        position = LogPosition(log=log.identity, sequence=end.sequence, checksum=end.checksum)
    return LoggedChanges(path, position, digest.hexdigest(), changes)


def fold(
    base: Path,
    corpus: manifest.Corpus,
    changes: Sequence[tuple[int, Change]],
    name: str,
    log: str,
) -> manifest.Corpus:
    """Applies changes to a store that was written; its file is replaced.

    Args:
      base: The directory of the bundle that is being written.
      corpus: The entry of the store in the manifest.
      changes: The changes of the store, with their sequence numbers.
      name: What the recipe calls the store, for messages.
      log: The name of the log, for messages.

    Returns:
      The entry of the changed store.

    Raises:
      NotConvertible: A change does not fit the store, or no entry is left; names its sequence.
      OSError: The file cannot be written.
    """
    import pyarrow as pa

    if not changes:
        return corpus
    # Entries that no change names are copied batch by batch, so that memory holds the others alone.
    path = base / corpus.file
    keys = {key for _, change in changes for key in change.ids.tolist()}
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
        changed = _apply_changes(pa.Table.from_batches(touched), corpus, changes, name, log)
        for batch in changed.to_batches():
            writer.write_batch(batch)
            count += batch.num_rows
    if not count:
        changed_path.unlink()
        raise NotConvertible(f"{name}: {log} deletes every entry; at least one was expected")
    # The store is replaced only by a whole file.
    changed_path.replace(path)
    return corpus.model_copy(update={"size": count})


def _apply_changes(
    touched: Any,
    corpus: manifest.Corpus,
    changes: Sequence[tuple[int, Change]],
    name: str,
    log: str,
) -> Any:
    """Returns some entries of a store as changes leave them, a `pyarrow.Table`."""
    import pyarrow as pa

    # The entries are changed by the code of the service, which reads a store from a file.
    with tempfile.TemporaryDirectory(prefix="changes-") as directory:
        path = Path(directory, "touched")
        arrow.write(path, touched)
        entry = corpus.model_copy(update={"size": touched.num_rows})
        overlay = StoreOverlay(CandidateStore(path, entry), entry)
        for sequence, change in changes:
            try:
                _apply(overlay, change)
            except BundleError as problem:
                raise NotConvertible(
                    f"{name}: change {sequence} of {log} does not fit: {problem}; export without "
                    "--with-changes, or change the recipe"
                ) from problem
        store: StoreSnapshot = overlay.store
        # Entries end where a change deletes them, or replaces them by a later entry.
        positions = np.setdiff1d(np.arange(store.size), store.ended)
        columns = store.arrays(positions, touched.column_names)
        return pa.Table.from_pydict(columns, schema=touched.schema)


def _apply(overlay: StoreOverlay, change: Change) -> None:
    action = change.head.action
    names = change.columns.schema.names
    if action == "delete":
        overlay.delete(change.ids)
        return
    types = overlay.store.types
    if action == "attributes":
        sent = [name for name in names if name.startswith(ATTRIBUTE)]
        batch, _ = fitted_batch(change.columns.select(sent), types)
        attributes = dict(zip(batch.schema.names, batch.columns, strict=True))
        if attributes:
            overlay.set_attributes(
                change.ids,
                {name.removeprefix(ATTRIBUTE): values for name, values in attributes.items()},
            )
    else:
        batch, _ = fitted_batch(change.store_columns, types)
        overlay.upsert(with_null_attributes(batch, types))


def _reason_not_included(change: Change, stores: Mapping[str, Collection[str]]) -> str:
    """Returns why a change is not in the bundle; "": it is, or a part of it is."""
    head = change.head
    section = "contexts"
    if head.kind == "candidates":
        section = "corpora"
    if head.target not in stores[section]:
        return f"the recipe has no {section}.{head.target}"
    if change.sent_indexes:
        return "vectors belong to the version for which they were sent"
    expires_s = change.numbers(EXPIRES)
    # NaN stands for an entry that does not expire.
    if expires_s is not None and not np.isnan(expires_s).all():
        return "a bundle knows no expiry; the service reads them from the log"
    return ""
