"""A loaded version of a model, and the changes of its candidates and contexts so far."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from bundle.changes.file import ChangesFile
from bundle.changes.states import ChangedItem, Key, Owner, changed_items
from service.changes.embedding import embed_all, missing_inputs, shards_needed
from service.changes.store_changes import ChangedCorpus
from service.changes.tower_checks import TowerChecks
from service.versions.version import LoadedStore, ModelVersion, ServedIndex

OTHER_VERSION = "the vectors belong to another version"
"""The reason why a change is dropped: in another training, a vector of a tower has another
meaning.
"""
NOT_EMBEDDED = "the vector of a candidate cannot be computed"
"""The reason why no request finds a candidate."""
_STORE_NOUNS = {"candidates": "corpus", "contexts": "context store"}


@dataclass(frozen=True)
class Dropped:
    """Changes that a version does not serve, or not whole.

    Attributes:
      items: The number of candidates or contexts; one that changes again counts each time.
      first_id: The id of the first one.
    """

    items: int
    first_id: Key


def included_of(loaded: ModelVersion, file: ChangesFile) -> int:
    """Returns the sequence up to which the bundle of a version contains the changes of a file; 0:
    none.

    Raises:
      BundleError: The file cannot be read.
    """
    included = loaded.manifest.changes_included
    # Those of another file do not count, nor those of this one that it has lost and then given
    # their sequences to others, as one does that was restored from an older copy.
    if included is None or not file.has(included):
        return 0
    return included.sequence


class ChangedVersion:
    """A loaded version, and its changes so far. One thread at a time applies them.

    Attributes:
      loaded: The version as it was loaded.
      included: The sequence up to which its bundle contains the changes; 0: none.
      towers: Checks what its towers will read.
      served: The version with the changes that were applied before the last `publish`.
      sequence: The sequence of the last state that was applied, or is not served.
    """

    def __init__(self, loaded: ModelVersion, file: ChangesFile) -> None:
        """Begins without changes.

        Args:
          loaded: The version as it was loaded.
          file: The changes of the model.

        Raises:
          BundleError: The file cannot be read; see `ChangesFile.has_news`.
        """
        self.loaded = loaded
        self.included = included_of(loaded, file)
        self.served = loaded
        self.sequence = 0
        self.towers = TowerChecks(loaded)
        self._stores: dict[Owner, ChangedCorpus] = {}
        self._attributes = {
            (kind, name): store.entry.attributes
            for kind, stores in (("candidates", loaded.corpora), ("contexts", loaded.contexts))
            for name, store in stores.items()
        }
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

    def follow(self, file: ChangesFile) -> None:
        """Applies the states that the version lacks.

        Args:
          file: The changes of the model.

        Raises:
          ShardsFailed: A shard that they need does not respond; some are applied, and the next call
            applies the others.
          FormatError: A store would have too many positions; likewise.
          BundleError: The file cannot be read; see `ChangesFile.has_news`.
        """
        while True:
            states, end = file.new_states(self.sequence)
            if end == self.sequence:
                return
            changed = changed_items(states, self.sequence, self.included, self._attributes)
            for owner, items in changed.items():
                store = self.store(*owner)
                if store is None:
                    kind, name = owner
                    reason = f"there is no {_STORE_NOUNS[kind]} {name!r}"
                    self._note_dropped(reason, [item.id for item in items])
                    continue
                rejection = partial(self._rejection, store)
                with shards_needed(self.loaded):
                    lost = store.apply(items, self.loaded.version, rejection)
                for reason, ids in lost.items():
                    self._note_dropped(reason, ids)
            self.sequence = end
            self._is_outdated = True

    def store(self, kind: str, name: str) -> ChangedCorpus | None:
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
    def counts(self) -> dict[Owner, int]:
        """The number of candidates or contexts of each store behind those of the bundle that have
        not expired.
        """
        now_s = time.time()
        return {key: store.unexpired_count(now_s) for key, store in self._stores.items()}

    @property
    def dropped(self) -> Mapping[str, Dropped]:
        """What was changed and this version does not serve, or not whole, by the reason: states
        that do not fit it, attributes that it lacks, candidates that it cannot embed.
        """
        hidden = [
            key for store in self._stores.values() for key in store.store.ids(store.hidden).tolist()
        ]
        if not hidden:
            return {**self._dropped}
        return self._dropped | {NOT_EMBEDDED: Dropped(len(hidden), hidden[0])}

    def _note_dropped(self, reason: str, ids: Sequence[Key]) -> None:
        before = self._dropped.get(reason, Dropped(0, ids[0]))
        self._dropped[reason] = replace(before, items=before.items + len(ids))

    def _rejection(self, store: ChangedCorpus, item: ChangedItem) -> str:
        """Returns why a candidate or context that is upserted is not served; "": it is."""
        for name, index in store.indexes.items():
            if not item.has_vector(name, self.loaded.version) and missing_inputs(
                self.loaded, store.base.entry, index
            ):
                return OTHER_VERSION
        return ""
