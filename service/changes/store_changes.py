"""The changes of one store of a loaded version, and its served state: the candidates of the bundle
and, behind them, those that were added or replaced since.

Changed candidates are searched beside the index of the bundle. A candidate that was replaced or
deleted keeps its position, which no search returns, until the positions are compacted. Positions
follow the order of the last states, so that it is the same in every process.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.changes.fitting import FittedItems, Lost, fit
from bundle.changes.states import ChangedItem
from bundle.stores.overlay import ChangedAttributeIndex, StoreOverlay, StoreSnapshot
from bundle.stores.reader import CandidateStore
from bundle.tables.id_values import distinct
from runtime.exact import ExactIndex
from service.changes.growing_vectors import GrowingVectors, Vectors
from service.engine.computation import completed
from service.versions.version import FilteredCorpus, LiveIndex, LoadedStore, ServedIndex

Ids = NDArray[Any]
Positions = NDArray[np.int64]

_COMPACTED_MIN = 16_384
"""The minimum number of positions behind those of the bundle that are compacted."""
_LIVE_SHARE_MIN = 0.5
"""The share of these positions whose candidates are live, below which they are compacted: so each
candidate is copied once, on average, for each that is added."""
_SAMPLED_MAX = 2_048
"""The maximum number of vectors of the bundle that levels of codes are trained on."""


class ChangedCorpus:
    """The changes of a corpus, or of a context store, which has no indexes. One thread at a time
    makes them.

    Attributes:
      base: The store of the bundle.
      indexes: The indexes over it, by name.
    """

    def __init__(self, base: LoadedStore, indexes: Mapping[str, ServedIndex]) -> None:
        """Begins without changes."""
        self.base = base
        self.indexes = indexes
        store = base.store
        assert isinstance(store, CandidateStore)  # noqa: S101 - as it was loaded
        self._base_store = store
        self._changes = StoreOverlay(store, base.entry)
        self._vectors = {name: self._no_vectors(name) for name in indexes}
        self._withdrawn = base.deny_list.begin(self.store)
        self._unembedded: set[int | str] = set()
        """The ids of candidates whose vectors are still to be computed."""
        self._hidden: set[int | str] = set()
        """The ids of candidates whose vectors could not be computed."""

    @property
    def store(self) -> StoreSnapshot:
        """The candidates as they are now."""
        return self._changes.store

    @property
    def is_changed(self) -> bool:
        """Whether anything differs from the bundle."""
        store = self.store
        return bool(store.ended.size) or store.size > store.base_size

    @property
    def added_count(self) -> int:
        """The number of candidates behind those of the bundle that have not ended, expired ones
        included.
        """
        store = self.store
        ended_in_base = store.ended.searchsorted(store.base_size)
        return int(store.count - (store.base_size - ended_in_base))

    def unexpired_count(self, now_s: float) -> int:
        """Returns how many of these have not expired; `now_s`: Unix seconds."""
        return self.added_count - self.store.expired_count(now_s)

    def is_known(self, keys: Sequence[int | str]) -> NDArray[np.bool_]:
        """Returns which ids the bundle has, or the changes, but for expired candidates, [m]."""
        kind = int if self.base.entry.id_dtype == "int64" else str
        is_known = np.array([type(key) is kind for key in keys], bool)
        ids = self._changes.id_array([key for key in keys if type(key) is kind])
        is_known[is_known] = (self._base_store.positions(ids) >= 0) | (
            self.store.positions(ids) >= 0
        )
        return is_known

    @property
    def unembedded(self) -> Positions:
        """The positions of candidates whose vectors are still to be computed, ascending."""
        return self._positions_of(self._unembedded)

    @property
    def hidden(self) -> Positions:
        """The positions of candidates that have no vectors, ascending: no request finds them."""
        return self._positions_of(self._unembedded | self._hidden)

    def compact(self, now_s: float) -> None:
        """Forgets candidates that have ended or expired if they are most of many positions behind
        those of the bundle, or all of them. The others get new positions, in the same order;
        `now_s`: Unix seconds.
        """
        slot_count = self._changes.slot_count
        if not slot_count:
            return
        if self.added_count:
            if slot_count < _COMPACTED_MIN:
                return
            if self.unexpired_count(now_s) > _LIVE_SHARE_MIN * slot_count:
                return
        # Into new arrays: states that are served go on reading the old ones.
        base_size = self.store.base_size
        self._changes, positions = self._changes.compacted(now_s)
        keys = [*self._unembedded, *self._hidden]
        is_gone = self._changes.positions(self._changes.id_array(keys)) < 0
        self._forget_embedding(itertools.compress(keys, is_gone.tolist()))
        for name, growing in self._vectors.items():
            compacted = self._no_vectors(name)
            slots = positions - base_size
            compacted.append(growing.view[slots], growing.is_logged[slots])
            self._vectors[name] = compacted
        self._withdrawn = self.base.deny_list.begin(self.store)

    def apply(
        self, items: Sequence[ChangedItem], version: int, rejection: Callable[[ChangedItem], str]
    ) -> Lost:
        """Applies what has changed; returns what is not served, or not whole.

        Vectors that were computed or sent for another version are computed by `embed`. Until then,
        the candidates are hidden.

        Args:
          items: What has changed, in its order.
          version: The version whose vectors count.
          rejection: Returns why an upsert is not served; "": it is.

        Raises:
          FormatError: There are too many positions; nothing was changed.
          ServiceError: A shard that holds some of their vectors does not respond; nothing was
            changed.
        """
        fitted = fit(items, self._changes, rejection)
        # Before anything is changed: shards may have to be called.
        vectors = {name: self._vectors_of(name, fitted, version) for name in self.indexes}
        # First, since it may fail; all that follows cannot.
        if fitted.items:
            import pyarrow as pa

            batch = pa.record_batch({**fitted.columns})
            positions = self._changes.upsert(batch, fitted.expires_s)
            ids = self.store.ids(positions)
            for name, growing in self._vectors.items():
                growing.append(*vectors[name])
            # Other attributes leave it as it was whether a candidate has its vectors.
            has_new_vectors = np.array([item.whole is not None for item in fitted.items], bool)
            self._forget_embedding(ids[has_new_vectors].tolist())
            for _, is_logged in vectors.values():
                self._unembedded.update(ids[has_new_vectors & ~is_logged].tolist())
            self.base.deny_list.follow(self.store, ids, positions)
        self._changes.delete(fitted.deleted)
        self._forget_embedding(fitted.deleted.tolist())
        self.compact(time.time())
        return fitted.lost

    def embed(self, index: str, positions: Positions, vectors: Vectors) -> None:
        """Gives candidates that were not embedded the vectors of an index.

        Args:
          index: The name of the index.
          positions: [m] int64, positions of live candidates in slots, distinct, whose vectors were
            never served.
          vectors: [m, dim], the vectors.
        """
        self._vectors[index].replace(positions - self.store.base_size, vectors)

    def note_embedded(self, ids: Ids, is_embedded: NDArray[np.bool_]) -> None:
        """Notes candidates whose vectors were computed, or cannot be. Those that cannot are hidden.

        Args:
          ids: [m], the ids.
          is_embedded: [m], whether the vectors could be computed.
        """
        self._unembedded.difference_update(ids.tolist())
        self._hidden.update(ids[~is_embedded].tolist())

    def served(self) -> tuple[LoadedStore, dict[str, ServedIndex]]:
        """Returns the state that is served now: the store, and the indexes over it by name. Later
        changes do not alter it.
        """
        base = self.base
        store = self.store
        hidden = self.hidden
        if hidden.size:
            store = store.without(hidden)
        entry = base.entry.model_copy(update={"size": store.count})
        corpus = replace(base, entry=entry, store=store, withdrawn=self._withdrawn)
        # Without slots, searches have one part less to merge.
        if store.size == store.base_size:
            indexes = {name: replace(index, corpus=corpus) for name, index in self.indexes.items()}
            return corpus, indexes
        added_filters = {
            attribute: ChangedAttributeIndex(store, attribute) for attribute in base.filters
        }
        added_corpus = FilteredCorpus(base.name, base.entry, added_filters)
        ended = store.ended[store.ended.searchsorted(store.base_size) :]
        slots = np.arange(store.size - store.base_size, dtype=np.uint32)
        live = np.delete(slots, ended.astype(np.int64) - store.base_size)
        indexes = {}
        for name, index in self.indexes.items():
            growing = self._vectors[name]
            # What the bundle searches exactly stays exact.
            codes = None
            if index.entry.kind != "brute_force":
                codes = growing.codes(partial(_sample, index))
            exact = ExactIndex(growing.view, index.entry.distance)
            added = LiveIndex.of(index.entry, exact, growing.view, added_corpus, live, codes)
            indexes[name] = replace(index, corpus=corpus, added=added)
        return corpus, indexes

    def _forget_embedding(self, keys: Iterable[int | str]) -> None:
        """Forgets what was noted about the vectors of candidates that are replaced or gone."""
        for key in keys:
            self._unembedded.discard(key)
            self._hidden.discard(key)

    def _positions_of(self, keys: Collection[int | str]) -> Positions:
        """Returns the positions of those of some candidates that have not expired, ascending."""
        positions = self.store.positions(self._changes.id_array([*keys]))
        return distinct(positions[positions >= 0])

    def _no_vectors(self, name: str) -> GrowingVectors:
        """Returns room for the vectors of an index."""
        entry = self.indexes[name].entry
        return GrowingVectors(entry.dim, entry.distance)

    def is_logged(self, name: str, positions: Positions) -> NDArray[np.bool_]:
        """Returns which vectors of an index at some positions are in the file or in the bundle."""
        is_logged = positions < self.store.base_size
        slots = positions[~is_logged] - self.store.base_size
        is_logged[~is_logged] = self._vectors[name].is_logged[slots]
        return is_logged

    def _vectors_of(
        self, name: str, fitted: FittedItems, version: int
    ) -> tuple[Vectors, NDArray[np.bool_]]:
        """Returns the vectors of an index of what has changed, [m, dim], and which of them are in
        the file or in the bundle, [m]; errors as of `_vectors_at`.
        """
        is_kept = fitted.sources >= 0
        kept_positions = fitted.sources[is_kept]
        vectors: Vectors = np.zeros((is_kept.size, self.indexes[name].entry.dim), np.float32)
        vectors[is_kept] = self._vectors_at(name, kept_positions)
        is_logged = np.zeros(is_kept.size, bool)
        is_logged[is_kept] = self.is_logged(name, kept_positions)
        rows = [
            row
            for row in (~is_kept).nonzero()[0].tolist()
            if fitted.items[row].has_vector(name, version)
        ]
        joined = b"".join([fitted.items[row].vector(name) for row in rows])
        vectors[rows] = np.frombuffer(joined, "<f4").reshape(len(rows), vectors.shape[1])
        is_logged[rows] = True
        return vectors, is_logged

    def _vectors_at(self, name: str, positions: Positions) -> Vectors:
        """Returns the vectors of an index at some positions, [m, dim].

        Raises:
          ServiceError: A shard that holds some of these vectors does not respond.
        """
        index = self.indexes[name]
        base_size = self.store.base_size
        is_changed = positions >= base_size
        vectors: Vectors = np.empty((positions.size, index.entry.dim), np.float32)
        vectors[~is_changed] = _stored_vectors(index, positions[~is_changed])
        vectors[is_changed] = self._vectors[name].view[positions[is_changed] - base_size]
        return vectors


def _stored_vectors(index: ServedIndex, positions: Positions) -> Vectors:
    """Returns vectors of an index as it was exported, from here or from shards; waits for them.

    Args:
      index: The index.
      positions: [m] int64, each among the candidates of the bundle.

    Returns:
      [m, dim] float32, owned by the caller.

    Raises:
      ServiceError: A shard that holds some of these candidates does not respond.
    """
    if index.here is not None:
        return np.array(index.here.vectors[positions], np.float32)
    assert index.shards is not None  # noqa: S101 - else the index is here
    if not positions.size:
        return np.empty((0, index.entry.dim), np.float32)
    vectors: Vectors = completed(index.shards.vectors(index.name, positions, math.inf))
    return np.array(vectors, np.float32)


def _sample(index: ServedIndex) -> Vectors:
    """Returns some vectors of the bundle, evenly; none if shards hold them."""
    if index.here is None:
        return np.empty((0, index.entry.dim), np.float32)
    vectors = index.here.vectors
    rows = np.linspace(0, len(vectors) - 1, min(len(vectors), _SAMPLED_MAX)).astype(np.int64)
    return np.asarray(vectors[rows])
