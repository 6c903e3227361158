"""A loaded version of a model, and the changes of its candidates and contexts so far."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from bundle.changes.records import EXPIRES, Change, Kind, Run, vector_column
from bundle.errors import BundleError, UnknownCandidate
from bundle.storage import arrow
from bundle.stores.batches import ATTRIBUTE, fitted_batch, with_null_attributes
from service.changes.embedding import embed_all, missing_inputs, shards_needed
from service.changes.store_changes import ChangedCorpus
from service.changes.tower_checks import TowerChecks
from service.engine.validation import NotFinite
from service.errors import ServiceError
from service.versions.version import LoadedStore, ModelVersion, ServedIndex

OTHER_VERSION = "the vectors belong to another version"
"""The reason why a change is dropped: in another training, a vector of a tower has another
meaning.
"""
NOT_EMBEDDED = "the vector of a candidate cannot be computed"
"""The reason why no request finds a candidate."""


@dataclass(frozen=True)
class Dropped:
    """Changes of the log that a version does not serve, or not whole.

    Attributes:
      items: The number of candidates or contexts; one that several changes have counts each time.
      first_id: The id of the first one.
    """

    items: int
    first_id: int | str


class ChangeDropped(Exception):
    """A change in the log does not apply to this version; the message says why."""


REJECTIONS = (ChangeDropped, BundleError, ServiceError, NotFinite)
"""The errors that reject a change which does not apply to a version."""


class ChangedVersion:
    """A loaded version, and its changes so far. One thread at a time applies them.

    Attributes:
      loaded: The version as it was loaded.
      included: The sequence up to which its bundle contains the changes of the log; 0: none.
      towers: Checks what its towers will read.
      served: The version with the changes that were applied before the last `publish`.
      sequence: The sequence of the last change that was applied, or dropped.
    """

    def __init__(self, loaded: ModelVersion, included: int) -> None:
        """Begins without changes.

        Args:
          loaded: The version as it was loaded.
          included: The sequence up to which its bundle contains the changes of the log; 0: none.
        """
        self.loaded = loaded
        self.included = included
        self.served = loaded
        self.sequence = 0
        self.towers = TowerChecks(loaded)
        self._stores: dict[tuple[Kind, str], ChangedCorpus] = {}
        self._dropped: dict[str, Dropped] = {}
        self._is_outdated = False

    def publish(self) -> ModelVersion:
        """Returns the version with all changes that were applied; also as `served`.

        Raises:
          ShardsFailed: A shard that holds rows which vectors depend on does not respond. The next
            call tries again.
        """
        if not self._is_outdated:
            return self.served
        loaded = self.loaded
        corpora: dict[str, LoadedStore] = {**loaded.corpora}
        contexts: dict[str, LoadedStore] = {**loaded.contexts}
        indexes: dict[str, ServedIndex] = {**loaded.indexes}
        for (kind, name), changed in self._stores.items():
            if not changed.is_changed:
                continue
            embed_all(loaded, changed)
            store, store_indexes = changed.served()
            if kind == "candidates":
                corpora[name] = store
            else:
                contexts[name] = store
            indexes.update(store_indexes)
        self.served = replace(
            loaded, corpora=corpora, contexts=contexts, indexes=indexes, changes=self.sequence
        )
        self._is_outdated = False
        return self.served

    def apply(self, sequence: int, change: Change) -> None:
        """Applies a change; counts it as dropped where it does not apply to this version.

        Args:
          sequence: The sequence of the change in the log.
          change: The change.

        Raises:
          ShardsFailed: A shard that the change needs does not respond; nothing was changed.
        """
        # A change does not fit for good, and is dropped alike by all processes. A shard may respond
        # again: the change must not be lost by then.
        try:
            with shards_needed(self.loaded):
                self.change(change)
        except REJECTIONS as problem:
            with shards_needed(self.loaded):
                self._restore(change)
            reason = "it does not fit"
            if isinstance(problem, ChangeDropped):
                reason = str(problem)
            self._note_dropped(reason, change)
        self.sequence = sequence
        self._is_outdated = True

    def apply_run(self, run: Run) -> None:
        """Applies a run of changes like repeated calls of `apply`: at once where the effect is the
        same.

        Raises:
          ShardsFailed: A shard that a change needs does not respond; this change and those behind
            it are missing.
          FormatError: A change cannot be read.
        """
        store = self.store(run.head.kind, run.head.target)
        if store is None or not self._is_joinable(run, store):
            self._apply_singly(run)
            return
        rest: Run | None = run
        while rest is not None:
            # Up to the change behind which positions are compacted: they are given as by `apply`.
            count = int(rest.sizes.cumsum().searchsorted(store.slots_left)) + 1
            last = rest.sequences[:count][-1]
            part = rest.up_to(last)
            rest = rest.behind(last)
            assert part is not None  # noqa: S101 - it has one change at least
            try:
                self.change(part.joined)
            except REJECTIONS:
                # One of them does not fit. One by one, it is dropped, and the others are applied.
                self._apply_singly(part)
            else:
                self.set_sequence(last)

    def _apply_singly(self, run: Run) -> None:
        for sequence, change in run.changes:
            self.apply(sequence, change)

    def _is_joinable(self, run: Run, store: ChangedCorpus) -> bool:
        """Returns whether all changes of a run are accepted, or none is: they are upserts, and the
        log has the types of the store, so that no single value decides.
        """
        if len(run.sequences) == 1 or run.head.action != "upsert":
            return False
        types = store.store.types
        logged = {field.name: field.type for field in run.schema}
        return all(
            arrow.kind_of(logged[name]) == arrow.kind_of(stored)
            if name in logged
            else name.startswith(ATTRIBUTE)
            for name, stored in types.items()
        )

    def set_sequence(self, sequence: int) -> None:
        """Sets the sequence of the change that was applied last."""
        self.sequence = sequence
        self._is_outdated = True

    def change(self, change: Change) -> None:
        """Applies a change that may not be in the log yet.

        Args:
          change: The change.

        Raises:
          ChangeDropped: The change does not apply to this version; nothing was changed.
          BundleError: The change does not fit the version; nothing was changed.
          ServiceError: The change names something that does not exist; nothing was changed.
        """
        if not change.size:
            return
        self._is_outdated = True
        head = change.head
        store = self.store(head.kind, head.target)
        if store is None:
            what = "corpus" if head.kind == "candidates" else "context store"
            raise ChangeDropped(f"there is no {what} {head.target!r}")
        if head.action == "delete":
            store.delete(change.ids)
        elif head.action == "attributes":
            self._set_attributes(store, change)
        else:
            self._upsert(store, change)
        store.compact(change.time_s)

    def _restore(self, change: Change) -> None:
        """Gives ids whose candidates or contexts do not fit those that the bundle has: the change
        replaced all that came before it, but for attributes of changes with larger numbers.
        """
        head = change.head
        if head.action != "upsert":
            return
        store = self.store(head.kind, head.target)
        # Its ids may not even be of the store's kind.
        if store is not None:
            with suppress(UnknownCandidate):
                store.restore(change.ids, change.later_attributes)
                store.compact(change.time_s)

    def store(self, kind: Kind, name: str) -> ChangedCorpus | None:
        """Returns the changes of a corpus or context store; None: there is no such store."""
        key = (kind, name)
        if key not in self._stores:
            loaded = self.loaded
            stores = loaded.contexts
            indexes = {}
            if kind == "candidates":
                stores = loaded.corpora
                indexes = {
                    index_name: index
                    for index_name, index in loaded.indexes.items()
                    if index.entry.corpus == name
                }
            if name not in stores:
                return None
            self._stores[key] = ChangedCorpus(stores[name], indexes)
        return self._stores[key]

    @property
    def counts(self) -> dict[tuple[Kind, str], int]:
        """The number of candidates or contexts of each store behind those of the bundle that have
        not expired.
        """
        now_s = time.time()
        return {key: store.unexpired_count(now_s) for key, store in self._stores.items()}

    @property
    def dropped(self) -> Mapping[str, Dropped]:
        """What the log has and this version does not serve, or not whole, by the reason: changes
        that do not apply to it, attributes that it lacks, candidates that it cannot embed.
        """
        hidden = [
            key for store in self._stores.values() for key in store.store.ids(store.hidden).tolist()
        ]
        if not hidden:
            return {**self._dropped}
        return self._dropped | {NOT_EMBEDDED: Dropped(len(hidden), hidden[0])}

    def _note_dropped(self, reason: str, change: Change) -> None:
        before = self._dropped.get(reason)
        if before is None:
            before = Dropped(0, change.ids.tolist()[0])
        self._dropped[reason] = replace(before, items=before.items + change.size)

    def _note_lost(self, columns: Sequence[str], change: Change) -> None:
        """Notes columns of a change for which this version has no place."""
        for name in columns:
            self._note_dropped(f"this version has no place for {name.replace(':', ' ')}", change)

    def _set_attributes(self, store: ChangedCorpus, change: Change) -> None:
        """Changes attributes of candidates or contexts: those that the version has.

        Raises:
          FormatError: A value does not fit the store; nothing was changed.
        """
        names = [name for name in change.columns.schema.names if name.startswith(ATTRIBUTE)]
        batch, lost = fitted_batch(change.columns.select(names), store.store.types)
        if batch.num_columns:
            attributes = dict(zip(batch.schema.names, batch.columns, strict=True))
            store.set_attributes(
                change.ids,
                {name.removeprefix(ATTRIBUTE): values for name, values in attributes.items()},
            )
        self._note_lost(lost, change)

    def _upsert(self, store: ChangedCorpus, change: Change) -> None:
        """Adds candidates or contexts.

        Raises:
          ChangeDropped: The vectors were sent for another version, and this one cannot compute
            its own.
          FormatError: The candidates or contexts do not fit the store; nothing was changed.
        """
        head = change.head
        vectors = {}
        logged_names = set[str]()
        for name, index in store.indexes.items():
            logged = change.vectors(vector_column(name))
            if head.version == self.loaded.version and logged is not None:
                vectors[name] = logged
                logged_names.add(name)
                continue
            # Another version embeds the candidate with its own tower, all of them together before
            # they are served.
            if missing_inputs(self.loaded, store.base.entry, index):
                raise ChangeDropped(OTHER_VERSION)
            vectors[name] = np.zeros((change.size, index.entry.dim), np.float32)
        types = store.store.types
        batch, lost = fitted_batch(change.store_columns, types)
        for name in types:
            if not name.startswith(ATTRIBUTE) and name not in batch.schema.names:
                raise ChangeDropped(f"{name.replace(':', ' ')} is missing")
        columns = with_null_attributes(batch, types)
        store.upsert(columns, vectors, change.numbers(EXPIRES), logged_names)
        self._note_lost(lost, change)
