"""The changes of one store of a loaded version, and its served state: the candidates of the bundle
and, behind them, those that were added or replaced since.

Changed candidates are searched exactly, beside the index of the bundle, until they are absorbed
into segments, which have indexes of their own. A candidate that was replaced or deleted keeps its
position, which no search returns.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.changes.segments import EXPIRES, sent_column
from bundle.errors import FormatError
from bundle.stores.changed import ChangedAttributeIndex, ChangedStore, Moment, StoreChanges
from bundle.stores.reader import CandidateStore
from runtime.exact import ExactIndex
from service.changes.absorbed_parts import AbsorbedParts, vectors_at
from service.changes.changed_parts import stored_vectors
from service.changes.growing_vectors import GrowingVectors, Vectors
from service.changes.segments import LoadedSegment, without_ended
from service.versions.version import (
    FilteredCorpus,
    LiveIndex,
    LoadedIndex,
    LoadedStore,
    ServedIndex,
)

Ids = NDArray[Any]
Positions = NDArray[np.int64]

_COMPACTED_MIN = 65_536
"""Minimum number of positions of ended candidates that are compacted: segments are made long
before, unless the log cannot be written or the directory of segments is read-only.
"""
_OUTDATED_EXPIRIES_MAX = 1_000
"""Number of outdated expiries that are kept beside as many as there are current ones."""


class ChangedCorpus:
    """The changes of a corpus, or of a context store, which has no indexes. One thread at a time
    makes them.

    Attributes:
      base: The store of the bundle.
      indexes: The indexes over it, by name.
      segments: The segments that hold changed candidates, in the order of their positions.
    """

    def __init__(self, base: LoadedStore, indexes: Mapping[str, ServedIndex]) -> None:
        """Begins without changes."""
        self.base = base
        self.indexes = indexes
        self.segments: Sequence[LoadedSegment] = ()
        store = base.store
        assert isinstance(store, CandidateStore)  # noqa: S101 - as it was loaded
        self._base_store = store
        self._changes = StoreChanges(store, base.entry)
        self._vectors = {name: GrowingVectors(index.entry.dim) for name, index in indexes.items()}
        self._denied = base.denied.begin(self.store)

        # A segment is made of the state after some change, while later changes go on: the state
        # must be known when the log names the segment.
        self._marked: list[int] = [0]
        """The sequences of changes, ascending; `_moments` has the state after each."""
        self._moments: list[Moment | None] = [self._changes.moment]
        """None: several changes were made at once, and the state after the first is not known."""

        self._sent: dict[str, set[int | str]] = {name: set() for name in indexes}
        """The ids of candidates whose vectors were sent, by index."""
        self._expiry_s: dict[int | str, float] = {}
        """The times when candidates expire, in Unix seconds, by id."""
        self._expiries: list[tuple[float, int | str]] = []
        """A heap of the same times, in which outdated ones stay."""

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
        """The number of candidates behind those of the bundle that have not ended."""
        store = self.store
        ended_in_base = store.ended.searchsorted(store.base_size)
        return int(store.count - (store.base_size - ended_in_base))

    def mark(self, sequence: int, first_sequence: int | None = None) -> None:
        """Sets the sequence of the last change.

        Args:
          sequence: The sequence.
          first_sequence: The sequence of the first change, if several were made at once.
        """
        # The change was one of another store.
        moment = self._changes.moment
        if moment == self._moments[-1]:
            return
        if first_sequence is not None:
            self._marked.append(first_sequence)
            self._moments.append(None)
        self._marked.append(sequence)
        self._moments.append(moment)

    @property
    def slot_count(self) -> int:
        """The number of positions behind those of the segments, ended ones included."""
        return self._changes.moment.slot_count

    @property
    def segment_counts(self) -> list[tuple[int, int]]:
        """The number of positions of each segment, and of those that have not ended."""
        return self._changes.segment_counts

    def begin_with(
        self, sequence: int, segments: Sequence[LoadedSegment], ended: NDArray[np.uint32]
    ) -> None:
        """Begins with the candidates that segments hold, without any change before.

        Args:
          sequence: The sequence of the last change that the segments contain.
          segments: The segments, in the order of their positions.
          ended: The positions that were ended then, ascending.
        """
        stores = [segment.store for segment in segments]
        self._changes = StoreChanges.of_segments(self._base_store, self.base.entry, stores, ended)
        self.segments = tuple(segments)
        self._begin_moments(sequence)
        first = self._base_store.size
        for segment in segments:
            self._read_states(segment, first, ended)
            first += segment.store.size

    def absorb(
        self, sequence: int, segments: Sequence[LoadedSegment], ended: NDArray[np.uint32]
    ) -> None:
        """Lets segments hold the candidates that changed up to a sequence. All changed candidates
        get new positions, in the same order.

        Args:
          sequence: The sequence of the last change that the segments contain.
          segments: The segments, in the order of their positions.
          ended: The positions that were ended then, ascending.

        Raises:
          FormatError: The state at that sequence is not known any more, or the segments do not
            hold it; nothing was changed.
        """
        # The state after the last change up to that sequence.
        position = bisect_right(self._marked, sequence) - 1
        moment = None
        if position >= 0:
            moment = self._moments[position]
        if moment is None:
            raise FormatError(
                f"the state of corpus {self.base.name!r} after change {sequence} is not known any "
                "more"
            )
        self._rebase(segments, ended, moment)

    def compact(self) -> bool:
        """Forgets candidates that were added and replaced or deleted since, if they are many. All
        others that lie in no segment get new positions, in the same order.

        Returns:
          Whether positions have changed.
        """
        store = self.store
        ended_count = store.ended.size - int(store.ended.searchsorted(store.slots_start))
        live_count = self.slot_count - ended_count
        # Most slots must have ended, so that a candidate is copied only as often as they double.
        if ended_count < max(_COMPACTED_MIN, live_count):
            return False
        ended = store.ended[: store.ended.searchsorted(store.slots_start)]
        self._rebase(self.segments, ended, Moment(self._changes.moment.number, 0))
        return True

    def _rebase(
        self, segments: Sequence[LoadedSegment], ended: NDArray[np.uint32], moment: Moment
    ) -> None:
        """Lets segments hold the candidates that changed up to a moment, as `rebased` does."""
        # Into new arrays: states that are served go on reading the old ones.
        slots_start = self.store.slots_start
        stores = [segment.store for segment in segments]
        changes, behind = self._changes.rebased(stores, ended, moment)
        for name, growing in self._vectors.items():
            remaining = GrowingVectors(self.indexes[name].entry.dim)
            remaining.append(growing.view[behind - slots_start])
            self._vectors[name] = remaining
        self._changes = changes
        self.segments = tuple(segments)
        self._begin_moments(self._marked[-1])

    def _begin_moments(self, sequence: int) -> None:
        """Forgets earlier states, whose positions mean other candidates now."""
        self._marked = [sequence]
        self._moments = [self._changes.moment]
        self._denied = self.base.denied.begin(self.store)

    def _read_states(self, segment: LoadedSegment, first: int, ended: NDArray[np.uint32]) -> None:
        """Reads when the candidates of a segment expire, and whose vectors were sent.

        Args:
          segment: The segment.
          first: The position of its first candidate.
          ended: The positions that ended, ascending.
        """
        positions = np.arange(segment.store.size)
        start, stop = ended.searchsorted([first, first + positions.size])
        positions = np.delete(positions, ended[start:stop].astype(np.int64) - first)
        columns = [EXPIRES, *(sent_column(name) for name in self.indexes)]
        arrays = segment.store.arrays(positions, columns)
        ids = segment.store.ids(positions)
        for name, sent_ids in self._sent.items():
            was_sent = arrays[sent_column(name)].to_numpy(zero_copy_only=False)
            sent_ids.update(ids[was_sent].tolist())
        expires_s = arrays[EXPIRES].to_numpy(zero_copy_only=False)
        is_expiring = ~np.isnan(expires_s)
        expiring_ids = ids[is_expiring].tolist()
        times_s = expires_s[is_expiring].tolist()
        for key, time_s in zip(expiring_ids, times_s, strict=True):
            self._set_expiry(key, time_s)

    def parts(self, first_segment: int) -> AbsorbedParts:
        """Returns the candidates that a new segment is to hold: those behind some segments that
        stay. Later changes do not alter it.

        Args:
          first_segment: The number of segments that stay.
        """
        store = self.store
        first = store.base_size
        for segment in self.segments[:first_segment]:
            first += segment.store.size
        boundary = store.ended.searchsorted(first)
        ended_behind = store.ended[boundary:].astype(np.int64) - first
        positions = np.delete(np.arange(first, store.size), ended_behind)
        # Sets and dicts are copied: changes go on while the segment is written.
        return AbsorbedParts(
            store,
            positions,
            store.ended[:boundary],
            {name: self._changed_vectors(name) for name in self.indexes},
            {name: set(sent_ids) for name, sent_ids in self._sent.items()},
            dict(self._expiry_s),
        )

    def _changed_vectors(self, name: str) -> Sequence[Vectors]:
        """Returns the vectors of an index, of the segments and the slots."""
        parts = [segment.indexes[name].vectors for segment in self.segments]
        return [*parts, self._vectors[name].view]

    def vectors(self, positions: Positions) -> dict[str, Vectors]:
        """Returns the vectors of candidates by index, [m, dim] each.

        Args:
          positions: [m] int64, the positions.

        Raises:
          ServiceError: A shard that holds some of these vectors does not respond.
        """
        return {name: self._vectors_at(name, positions) for name in self._vectors}

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
          vectors: [m, dim], the vectors of each index.
          embedded: The indexes whose vectors a candidate tower has computed.
          expires_s: The times when the candidates expire, [m] Unix seconds, NaN: never; None:
            none of them expires.

        Returns:
          The new positions, [m].

        Raises:
          FormatError: A column does not fit the store; nothing was changed.
        """
        # First, since it may fail; all that follows cannot.
        positions = self._changes.upsert(columns)
        for name, growing in self._vectors.items():
            growing.append(vectors[name])

        # Vectors that were sent stay when a row that the candidate reads changes.
        ids = self.store.ids(positions)
        for name, sent_ids in self._sent.items():
            if name in embedded:
                sent_ids.difference_update(ids.tolist())
            else:
                sent_ids.update(ids.tolist())
        self.base.denied.follow(self.store, ids, positions)
        if expires_s is None:
            expires_s = np.full(ids.size, np.nan)
        for key, time_s in zip(ids.tolist(), expires_s.tolist(), strict=True):
            self._set_expiry(key, time_s)
        return positions

    def embed(self, positions: Positions, vectors: Mapping[str, Vectors]) -> None:
        """Gives candidates other vectors.

        Args:
          positions: [m] int64, positions of live candidates in slots, distinct, whose vectors were
            never served.
          vectors: [m, dim] by index. Vectors that were sent stay.
        """
        ids = self.store.ids(positions)
        slots = positions - self.store.slots_start
        for name, computed in vectors.items():
            was_sent = np.array([key in self._sent[name] for key in ids.tolist()], bool)
            self._vectors[name].replace(slots[~was_sent], computed[~was_sent])

    def delete(self, ids: Ids) -> NDArray[np.bool_]:
        """Deletes candidates; returns which of the ids were there."""
        positions = self._changes.delete(ids)
        for key in ids.tolist():
            self._expiry_s.pop(key, None)
        for sent_ids in self._sent.values():
            sent_ids.difference_update(ids.tolist())
        return positions >= 0

    def set_attributes(
        self,
        ids: Ids,
        attributes: Mapping[str, Any],
        vectors: Mapping[str, Vectors] | None = None,
    ) -> NDArray[np.bool_]:
        """Changes attributes of candidates, which keep their features, vectors and expiry.

        Args:
          ids: [m], the ids, distinct.
          attributes: A `pyarrow.Array` of m values by attribute.
          vectors: The vectors of the candidates that exist, by index, as `vectors` returns them;
            None: they are read.

        Returns:
          Which of the ids are there, [m].

        Raises:
          FormatError: An attribute does not fit the store; nothing was changed.
          ServiceError: A shard that holds some of their vectors does not respond; nothing was
            changed.
        """
        # Before anything is changed: shards may have to be called. A candidate with other
        # attributes gets a new position, and its vectors have to lie there.
        if vectors is None:
            known_positions = self.store.positions(ids)
            vectors = self.vectors(known_positions[known_positions >= 0])
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
            # Another time, or none, was set later: this entry is outdated.
            if self._expiry_s.get(key) == time_s:
                ids.append(key)
        # They are returned again until the log says that they are deleted: it may not be writable
        # now.
        for key in ids:
            heapq.heappush(self._expiries, (self._expiry_s[key], key))
        return ids

    def served(self) -> tuple[LoadedStore, dict[str, ServedIndex]]:
        """Returns the state that is served now: the store, and the indexes over it by name. Later
        changes do not alter it.
        """
        base = self.base
        store = self.store
        entry = base.entry.model_copy(update={"size": store.count})
        corpus = replace(
            base, entry=entry, store=store, ended=store.ended, denied_added=self._denied
        )
        segments = self._served_segments()
        live = self._live(store.slots_start, store.size)
        # Without candidates in slots, searches have one part less to merge.
        if not live.size:
            indexes = {
                name: replace(index, corpus=corpus, segments=segments[name])
                for name, index in self.indexes.items()
            }
            return corpus, indexes
        added_filters = {
            attribute: ChangedAttributeIndex(store, attribute) for attribute in base.filters
        }
        added_corpus = FilteredCorpus(base.name, base.entry, added_filters)
        indexes = {}
        for name, index in self.indexes.items():
            vectors = self._vectors[name].view[: store.size - store.slots_start]
            exact = ExactIndex(vectors, index.entry.distance)
            added = LiveIndex.of(index.entry, exact, vectors, added_corpus, live)
            indexes[name] = replace(index, corpus=corpus, segments=segments[name], added=added)
        return corpus, indexes

    def _served_segments(self) -> dict[str, tuple[LoadedIndex, ...]]:
        """Returns the indexes of the segments, by name."""
        segments: dict[str, tuple[LoadedIndex, ...]] = dict.fromkeys(self.indexes, ())
        first = self.store.base_size
        for segment in self.segments:
            end = first + segment.store.size
            live = self._live(first, end)
            for name, index in segment.indexes.items():
                segments[name] += (without_ended(index, live),)
            first = end
        return segments

    def _live(self, first: int, end: int) -> NDArray[np.uint32]:
        """Returns the candidates from `first` to `end` that have not ended, counted from `first`.

        Args:
          first: The first position.
          end: The position behind the last one.
        """
        ended = self.store.ended
        inside = slice(*ended.searchsorted([first, end]))
        live = np.arange(end - first, dtype=np.uint32)
        return np.delete(live, ended[inside].astype(np.int64) - first)

    def _set_expiry(self, key: int | str, time_s: float) -> None:
        self._expiry_s.pop(key, None)
        if not np.isnan(time_s):
            self._expiry_s[key] = time_s
            # Renewed candidates leave an entry each time.
            if len(self._expiries) > 2 * len(self._expiry_s) + _OUTDATED_EXPIRIES_MAX:
                self._expiries = [(expiry_s, id_) for id_, expiry_s in self._expiry_s.items()]
                heapq.heapify(self._expiries)
            else:
                heapq.heappush(self._expiries, (time_s, key))

    def _vectors_at(self, name: str, positions: Positions) -> Vectors:
        """Returns the vectors of an index at some positions, [m, dim].

        Raises:
          ServiceError: A shard that holds some of these vectors does not respond.
        """
        index = self.indexes[name]
        base_size = self.store.base_size
        is_changed = positions >= base_size
        vectors: Vectors = np.empty((positions.size, index.entry.dim), np.float32)
        vectors[~is_changed] = stored_vectors(index, positions[~is_changed])
        changed = positions[is_changed] - base_size
        vectors[is_changed] = vectors_at(self._changed_vectors(name), changed)
        return vectors
