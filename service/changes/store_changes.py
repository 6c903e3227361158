"""The changes of one store of a loaded version, and what is served of it: the candidates of the
bundle and, behind them, those that were added or replaced since.

Changed candidates are searched exactly, beside the index of the bundle. What was replaced or
deleted keeps its position, and is found no more.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.stores.changed import ChangedAttributeIndex, ChangedStore, StoreChanges
from bundle.stores.reader import CandidateStore
from runtime.exact import ExactIndex
from service.changes.changed_parts import stored_vectors
from service.changes.growing_vectors import GrowingVectors, Vectors
from service.versions.filter_cache import FilterCache
from service.versions.version import FilteredCorpus, LoadedIndex, LoadedStore, ServedIndex

Ids = NDArray[Any]
Positions = NDArray[np.int64]

_COMPACTED_MIN = 1024
"""Positions of replaced candidates that are kept in any case."""
_NOT_CACHED = FilterCache(0)
"""Filters of changed candidates are compiled anew: what was kept of them would soon be outdated."""


class ChangedCorpus:
    """The changes of a corpus, or of a context store, which has no indexes. One thread at a time
    makes them.

    Attributes:
      base: The store of the bundle.
      indexes: Those over it, by name.
    """

    def __init__(self, base: LoadedStore, indexes: Mapping[str, ServedIndex]) -> None:
        """Begins without changes."""
        self.base = base
        self.indexes = indexes
        self._changes = self._new_changes()
        self._vectors = {name: GrowingVectors(index.entry.dim) for name, index in indexes.items()}
        self._denied = base.denied.begin(self.store)
        self._sent: dict[str, set[int | str]] = {name: set() for name in indexes}
        """Ids of candidates whose vectors were sent, by index."""
        self._expiry_s: dict[int | str, float] = {}
        """When candidates expire, in Unix seconds, by id."""
        self._expiries: list[tuple[float, int | str]] = []
        """A heap of the same, which keeps what is outdated."""

    @property
    def store(self) -> ChangedStore:
        """The candidates as they are now."""
        return self._changes.store

    @property
    def is_changed(self) -> bool:
        """Whether anything differs from the bundle."""
        store = self.store
        return bool(store.ended.size) or store.size > store.base_size

    @property
    def added_count(self) -> int:
        """How many candidates lie behind those of the bundle and are still there."""
        store = self.store
        ended = store.ended.searchsorted(store.base_size)
        return int(store.count - (store.base_size - ended))

    def compact(self) -> bool:
        """Forgets candidates that were added and replaced or deleted since, if they are many. All
        others behind those of the bundle get new positions, in the same order.

        Returns:
          Whether positions have changed.
        """
        import pyarrow as pa

        before = self.store
        added = np.arange(before.base_size, before.size)
        is_live = ~np.isin(added, before.ended)
        live_count = int(np.count_nonzero(is_live))
        if added.size - live_count < max(_COMPACTED_MIN, live_count):
            return False
        changes = self._new_changes()
        base_ended = before.ended[: before.ended.searchsorted(before.base_size)]
        changes.delete(before.ids(base_ended.astype(np.int64)))
        columns = before.arrays(added[is_live], list(before.types))
        changes.upsert(pa.record_batch(columns))
        for name, growing in self._vectors.items():
            kept = GrowingVectors(self.indexes[name].entry.dim)
            kept.append(growing.view[is_live])
            self._vectors[name] = kept
        self._changes = changes
        self._denied = self.base.denied.begin(self.store)
        return True

    def _new_changes(self) -> StoreChanges:
        store = self.base.store
        assert isinstance(store, CandidateStore)  # noqa: S101 - as it was loaded
        return StoreChanges(store, self.base.entry)

    def upsert(
        self,
        columns: Any,
        vectors: Mapping[str, Vectors],
        embedded: Collection[str],
        expires_s: NDArray[np.float64] | None,
    ) -> Positions:
        """Adds candidates; they replace those that have their ids.

        Args:
          columns: A `pyarrow.RecordBatch` of the columns of the store, m rows.
          vectors: [m, dim] of each index.
          embedded: The indexes whose vectors a candidate tower has computed.
          expires_s: When they expire, [m] Unix seconds, NaN: never; None: none of them does.

        Returns:
          The new positions, [m].

        Raises:
          FormatError: A column does not fit the store; nothing was changed.
        """
        positions = self._changes.upsert(columns)
        for name, growing in self._vectors.items():
            growing.append(vectors[name])
        ids = self.store.ids(positions)
        for name, sent in self._sent.items():
            if name in embedded:
                sent.difference_update(ids.tolist())
            else:
                sent.update(ids.tolist())
        self.base.denied.follow(self.store, ids, positions)
        if expires_s is None:
            expires_s = np.full(ids.size, np.nan)
        for key, time_s in zip(ids.tolist(), expires_s.tolist(), strict=True):
            self._set_expiry(key, time_s)
        return positions

    def embed(self, positions: Positions, vectors: Mapping[str, Vectors]) -> None:
        """Gives candidates other vectors.

        Args:
          positions: Of live candidates, distinct.
          vectors: [m, dim] by index. Those that were sent stay.

        Raises:
          ServiceError: A shard that holds some of their vectors does not respond; nothing was
            changed.
        """
        ids = self.store.ids(positions)
        replaced: dict[str, Vectors] = {}
        for name in self._vectors:
            is_kept = np.ones(ids.size, bool)
            if name in vectors:
                is_kept = np.array([key in self._sent[name] for key in ids.tolist()], bool)
            replaced[name] = np.empty((ids.size, self.indexes[name].entry.dim), np.float32)
            replaced[name][is_kept] = self._vectors_at(name, positions[is_kept])
            if name in vectors:
                replaced[name][~is_kept] = vectors[name][~is_kept]
        _, after = self._changes.set_attributes(ids, {})
        for name, growing in self._vectors.items():
            growing.append(replaced[name])
        self.base.denied.follow(self.store, ids, after)

    def delete(self, ids: Ids) -> NDArray[np.bool_]:
        """Deletes candidates; returns which of the ids were there."""
        positions = self._changes.delete(ids)
        for key in ids.tolist():
            self._expiry_s.pop(key, None)
        for sent in self._sent.values():
            sent.difference_update(ids.tolist())
        return positions >= 0

    def set_attributes(self, ids: Ids, attributes: Mapping[str, Any]) -> NDArray[np.bool_]:
        """Changes attributes of candidates, which keep their features, vectors and expiry.

        Args:
          ids: Distinct.
          attributes: A `pyarrow.Array` of m values each.

        Returns:
          Which of the ids are there, [m].

        Raises:
          FormatError: An attribute does not fit the store; nothing was changed.
          ServiceError: A shard that holds some of their vectors does not respond; likewise.
        """
        known = self.store.positions(ids)
        known = known[known >= 0]
        vectors = {name: self._vectors_at(name, known) for name in self._vectors}
        before, after = self._changes.set_attributes(ids, attributes)
        is_known = before >= 0
        for name, growing in self._vectors.items():
            growing.append(vectors[name])
        self.base.denied.follow(self.store, ids[is_known], after[is_known])
        return is_known

    def expired(self, now_s: float) -> list[int | str]:
        """Returns the ids of candidates that have expired and are still there."""
        ids = []
        while self._expiries and self._expiries[0][0] <= now_s:
            time_s, key = heapq.heappop(self._expiries)
            if self._expiry_s.get(key) == time_s:
                ids.append(key)
        for key in ids:  # until the log says that they are deleted
            heapq.heappush(self._expiries, (self._expiry_s[key], key))
        return ids

    def served(self) -> tuple[LoadedStore, dict[str, ServedIndex]]:
        """Returns what is served now: the store, and the indexes over it by name. Later changes do
        not alter it.
        """
        base = self.base
        store = self.store
        entry = base.entry.model_copy(update={"size": store.count})
        corpus = replace(
            base, entry=entry, store=store, ended=store.ended, denied_added=self._denied
        )
        if store.size == store.base_size:
            indexes = {name: replace(index, corpus=corpus) for name, index in self.indexes.items()}
            return corpus, indexes
        added_filters = {
            attribute: ChangedAttributeIndex(store, attribute) for attribute in base.filters
        }
        added_corpus = FilteredCorpus(base.name, base.entry, added_filters)
        indexes = {}
        for name, index in self.indexes.items():
            vectors = self._vectors[name].view[: store.size - store.base_size]
            added = LoadedIndex(
                index.entry,
                None,
                ExactIndex(vectors, index.entry.distance),
                vectors,
                added_corpus,
                _NOT_CACHED,
            )
            indexes[name] = replace(index, corpus=corpus, added=added)
        return corpus, indexes

    def _set_expiry(self, key: int | str, time_s: float) -> None:
        self._expiry_s.pop(key, None)
        if not np.isnan(time_s):
            self._expiry_s[key] = time_s
            heapq.heappush(self._expiries, (time_s, key))

    def _vectors_at(self, name: str, positions: Positions) -> Vectors:
        """Returns the vectors of an index at some positions, [m, dim].

        Raises:
          ServiceError: A shard that holds some of them does not respond.
        """
        index = self.indexes[name]
        base_size = self.store.base_size
        is_added = positions >= base_size
        vectors: Vectors = np.empty((positions.size, index.entry.dim), np.float32)
        vectors[~is_added] = stored_vectors(index, positions[~is_added])
        vectors[is_added] = self._vectors[name].view[positions[is_added] - base_size]
        return vectors
