"""Candidates that are added, replaced and deleted while a store is served.

The candidates of the store keep their positions. Each one that is added or replaced gets a slot
behind them: its position is the size of the store and the number of the slot. The position of a
candidate that is replaced or deleted is ended: it keeps what it holds, but no id leads to it.

Slots of which most have ended are compacted. Only then are positions given anew, in the same order.

Snapshots never change. They share what is only ever appended to: the slots' columns, the slots of
each id, when its candidate expires, and for each position the number of the change that ended it.
To a snapshot, a position is ended if that number is not larger than its own.
"""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bundle.errors import FormatError
from bundle.format.indexes import CANDIDATES_MAX
from bundle.format.manifest import Corpus
from bundle.storage import arrow
from bundle.stores.attribute_index import ANY_VALUE, Bounds, DistinctValues
from bundle.stores.attribute_index import Positions as RowPositions
from bundle.stores.batches import checked_batch
from bundle.stores.columns import ColumnBatch, Positions, StoredColumns
from bundle.stores.position_history import PositionHistory
from bundle.stores.reader import CandidateStore
from bundle.stores.value_counts import ValueCounts
from bundle.tables.id_values import distinct
from bundle.tables.position_sets import PositionSet

_EXACT_MAX = 1 << 53
"""Integers up to this one are exact as floats."""

_COMPARISONS: tuple[Callable[[Any, Any], Any], ...] = (
    operator.ge,
    operator.gt,
    operator.le,
    operator.lt,
)
"""Comparisons of values with the bounds of a filter, in the order of `Bounds`."""


@dataclass(frozen=True, eq=False)
class Expiries:
    """When candidates in slots expire. Those that ended are among them.

    Attributes:
      times_s: [e] float64, ascending, in Unix seconds.
      positions: [e] uint32, the position of the candidate that expires at each time.
    """

    times_s: NDArray[np.float64]
    positions: NDArray[np.uint32]

    @property
    def first_s(self) -> float:
        """The time when the first candidate expires; infinity: none does."""
        if not self.times_s.size:
            return math.inf
        return float(self.times_s[0])

    def expired(self, now_s: float) -> NDArray[np.uint32]:
        """Returns the positions of the candidates that have expired at a time in Unix seconds: [x]
        uint32, in no order.
        """
        return self.positions[: self.times_s.searchsorted(now_s, side="right")]

    def added(self, expires_s: NDArray[np.float64], positions: Positions) -> Expiries:
        """Returns these and further expiries.

        Args:
          expires_s: [m] Unix seconds, NaN: never.
          positions: [m] int64, the positions of the candidates.
        """
        (expiring,) = (~np.isnan(expires_s)).nonzero()
        order = expiring[np.argsort(expires_s[expiring], kind="stable")]
        before = self.times_s.searchsorted(expires_s[order], side="right")
        return Expiries(
            np.insert(self.times_s, before, expires_s[order]),
            np.insert(self.positions, before, positions[order]),
        )


class StoreOverlay:
    """The changes of one store: of candidates, or of contexts. One thread at a time uses it; the
    snapshots are safe for any number of threads.

    Attributes:
      types: The `pyarrow.DataType` of each column.
      attributes: The type of each attribute, such as int64.
      id_dtype: The type of the ids: int64 or string.
    """

    def __init__(self, base: CandidateStore, corpus: Corpus) -> None:
        """Begins without changes.

        Args:
          base: The store.
          corpus: Its entry in the manifest.
        """
        self._base = base
        self._corpus = corpus
        self.types = base.types
        self.attributes = corpus.attributes
        self.id_dtype = corpus.id_dtype
        self._history = PositionHistory(base, corpus)
        self._number = 0
        self._slot_count = 0
        self._tiers: list[ColumnBatch] = []
        self._ended = np.empty(0, np.uint32)
        self._newly_ended: list[Positions] = []
        self._expiries = Expiries(np.empty(0), np.empty(0, np.uint32))
        self._store: StoreSnapshot | None = None

    @property
    def store(self) -> StoreSnapshot:
        """The candidates now, which later changes leave as they are."""
        if self._store is None:
            self._merge_ended()
            self._store = StoreSnapshot(
                self._corpus,
                self._history,
                self._number,
                self._tiers,
                self._ended,
                self._expiries,
            )
        return self._store

    @property
    def slot_count(self) -> int:
        """The number of positions behind those of the bundle, ended ones included."""
        return self._slot_count

    def positions(self, ids: NDArray[Any]) -> Positions:
        """Returns [m] int64 positions of ids now, expired ones included; -1: there is none."""
        return self._history.positions(ids, "ids", self._number, self._slot_count)

    def exported_positions(self, ids: NDArray[Any]) -> Positions:
        """Returns [m] int64 positions of ids in the store of the bundle; -1: there is none."""
        return self._base.positions(ids)

    def expires_s(self, positions: Positions) -> NDArray[np.float64]:
        """Returns when candidates expire, [m] Unix seconds, NaN: never; by [m] int64 positions."""
        return self._history.expires_s(positions)

    def id_array(self, ids: Sequence[int | str]) -> NDArray[Any]:
        """Returns ids of the store's kind as an array, [m] int64 or object holding str."""
        return np.array(ids, np.int64 if self.id_dtype == "int64" else object)

    def compacted(self, now_s: float) -> tuple[StoreOverlay, Positions]:
        """Returns the same candidates without those that have ended or expired.

        Args:
          now_s: The time of the last change, in Unix seconds.

        Returns:
          The candidates, in the same order, and [t] the positions that those in slots had before,
          ascending.
        """
        history = self._history
        is_kept = history.is_live(self._slot_count) & ~history.is_expired(self._slot_count, now_s)
        positions = self._base.size + is_kept.nonzero()[0]
        compacted = StoreOverlay(self._base, self._corpus)
        ended = history.ended_in_base()
        if ended.size:
            compacted._begin_change()
            compacted._end(ended)
        if positions.size:
            arrays = self.store.arrays(positions, [*self.types])
            none_replaced = np.empty(0, np.int64)
            compacted._append(arrays, none_replaced, history.expires_s(positions))
        return compacted, positions

    def upsert(self, batch: Any, expires_s: NDArray[np.float64] | None = None) -> Positions:
        """Adds candidates, in the place of those that have their ids.

        Args:
          batch: A `pyarrow.RecordBatch` of m candidates with all columns of the store, `id`,
            `feature:*`, `weights:*` and `attribute:*`, of types that can be cast to the store's.
            Of an id that comes several times, the last candidate counts; each has a position.
          expires_s: The times when the candidates expire, [m] Unix seconds, NaN: never; None:
            none of them expires.

        Returns:
          [m] int64, the new positions.

        Raises:
          FormatError: A column does not fit, is missing or is none of the store's; an id, a feature
            or a weight is null; or there are too many positions. Nothing was changed.
        """
        arrays = checked_batch(batch, self.types)
        replaced = self.positions(arrow.values(arrays["id"]))
        return self._append(arrays, distinct(replaced[replaced >= 0]), expires_s)

    def delete(self, ids: NDArray[Any]) -> Positions:
        """Deletes candidates.

        Args:
          ids: [m] int64, or [m] object holding str.

        Returns:
          [m] int64, the positions that the candidates had; -1 where there is none.

        Raises:
          UnknownCandidate: A value is no id of the store's kind. Nothing was changed.
        """
        positions = self.positions(ids)
        ended = distinct(positions[positions >= 0])
        # A change that ends nothing would make a snapshot that equals the last one.
        if ended.size:
            self._begin_change()
            self._end(ended)
        return positions

    def _append(
        self,
        arrays: Mapping[str, Any],
        replaced: Positions,
        expires_s: NDArray[np.float64] | None,
    ) -> Positions:
        """Gives candidates that were checked the next slots, and ends the positions that they
        replace.
        """
        count = len(arrays["id"])
        first = self._base.size + self._slot_count
        if first + count > CANDIDATES_MAX:
            raise FormatError(
                f"{count} changed candidates behind {first} positions; at most {CANDIDATES_MAX} "
                "positions were expected, of which each change of a candidate takes one"
            )
        if not count:
            return np.empty(0, np.int64)
        # What may fail comes first: a change is made as a whole, or not at all.
        ids = arrays["id"].to_pylist()
        tiers = _with_batch(self._tiers, arrays, self._corpus.features)
        self._begin_change()
        self._end(replaced)
        repeated = self._history.append(ids, self._number, expires_s)
        if repeated.size:
            self._newly_ended.append(repeated)
        self._tiers = tiers
        self._slot_count += count
        positions = np.arange(first, first + count)
        if expires_s is not None:
            self._expiries = self._expiries.added(expires_s, positions)
        return positions

    def _begin_change(self) -> None:
        self._number += 1
        self._store = None

    def _end(self, positions: Positions) -> None:
        if positions.size:
            self._history.end(positions, self._number)
            self._newly_ended.append(positions)

    def _merge_ended(self) -> None:
        """Adds the positions that ended since the last snapshot to those that ended before."""
        if self._newly_ended:
            ended = np.concatenate(self._newly_ended)
            ended.sort()
            self._ended = np.insert(self._ended, self._ended.searchsorted(ended), ended)
            self._newly_ended = []


class StoreSnapshot(StoredColumns):
    """A snapshot of a store and its changes. Safe for any number of threads.

    Attributes:
      size: The number of positions, those that are ended included.
      base_size: How many of them are the bundle's; those of changed candidates follow.
      count: The number of candidates, expired ones included.
      ended: [e] uint32, the positions that are ended, ascending.
      expiries: When candidates expire.
    """

    def __init__(
        self,
        corpus: Corpus,
        history: PositionHistory,
        number: int,
        tiers: Sequence[ColumnBatch],
        ended: NDArray[np.uint32],
        expiries: Expiries,
        hidden: NDArray[np.uint32] | None = None,
    ) -> None:
        """Takes a state of `StoreOverlay`, which alone makes snapshots.

        Args:
          corpus: The manifest entry of the corpus.
          history: Which positions an id has had, of all states.
          number: The number of the last change in this state.
          tiers: The changed candidates, in the order of their slots.
          ended: [e] uint32 positions that are ended, ascending.
          expiries: When candidates expire.
          hidden: Positions that ids do not lead to, see `without`; None: there are none.
        """
        base = history.base
        super().__init__([*base.batches, *tiers], corpus.features, [*corpus.attributes])
        self.base_size = base.size
        self.count = self.size - ended.size
        self.ended = ended
        self.expiries = expiries
        self._base = base
        self._corpus = corpus
        self._history = history
        self._number = number
        self._slot_count = self.size - base.size
        self._tiers = tiers
        self._hidden = hidden
        self._expired_counts = {0: 0}

    def without(self, positions: Positions) -> StoreSnapshot:
        """Returns the snapshot without some candidates, whose positions count as ended.

        Args:
          positions: [m] int64, ascending and distinct positions of candidates in slots.
        """
        hidden = positions.astype(np.uint32)
        ended = np.insert(self.ended, self.ended.searchsorted(hidden), hidden)
        return StoreSnapshot(
            self._corpus, self._history, self._number, self._tiers, ended, self.expiries, hidden
        )

    def ids(self, positions: Positions) -> NDArray[Any]:
        """See `StoredColumns.ids`."""
        positions = self._checked(positions)
        behind = (positions >= self.base_size).nonzero()[0]
        if not behind.size:
            return self._base.ids(positions)
        if behind.size == positions.size or "id" not in self.batches[0].numbers:
            return super().ids(positions)
        # Most neighbors are the bundle's, whose ids lie in one array.
        ids = self._base.ids(np.minimum(positions, self.base_size - 1))
        starts = self._starts
        changed = positions[behind]
        numbers = starts[1:].searchsorted(changed, side="right")
        for number in set(numbers.tolist()):
            is_in_batch = numbers == number
            in_batch = changed[is_in_batch] - starts[number]
            ids[behind[is_in_batch]] = self.batches[number].numbers["id"].take(in_batch)
        return ids

    def positions(self, ids: NDArray[Any], field: str = "ids") -> Positions:
        """Returns [m] int64 positions of ids, -1 where there is no such candidate, or no more.

        Args:
          ids: [m] int64, or [m] object holding str.
          field: What the ids are called where they were sent, for the error.

        Raises:
          UnknownCandidate: A value is no id of the store's kind.
        """
        positions = self._history.positions(ids, field, self._number, self._slot_count)
        if self._hidden is not None:
            positions[np.isin(positions, self._hidden)] = -1
        return self.unexpired(positions, time.time())

    def unexpired(self, positions: Positions, now_s: float) -> Positions:
        """Returns positions of which those of candidates that have expired are -1.

        Args:
          positions: [m] int64, -1 where there is no candidate.
          now_s: The time, in Unix seconds.
        """
        if now_s < self.expiries.first_s:
            return positions
        return np.where(self._history.expires_s(positions) <= now_s, -1, positions)

    def expired_count(self, now_s: float) -> int:
        """Returns how many candidates have expired, without those that are ended; `now_s`: Unix
        seconds.
        """
        expired = self.expiries.expired(now_s)
        # A snapshot has few such numbers, and each is that of many requests.
        if expired.size not in self._expired_counts:
            is_ended = np.isin(expired, self.ended)
            self._expired_counts[expired.size] = int(np.count_nonzero(~is_ended))
        return self._expired_counts[expired.size]

    def value_counts(self, attribute: str) -> ValueCounts:
        """Returns how many candidates have each value of an attribute. Only what was changed is
        read, if the values of the store were counted before.
        """
        if attribute not in self._value_counts:
            column = f"attribute:{attribute}"
            # The positions that ended, ascending: first the bundle's, whose values are removed,
            # then those of changed candidates, whose values never counted.
            boundary = int(self.ended.searchsorted(self.base_size))
            is_live = np.ones(self.size - self.base_size, bool)
            is_live[self.ended[boundary:] - self.base_size] = False
            added_positions = self.base_size + is_live.nonzero()[0]
            added = self.arrays(added_positions, [column])[column]
            removed_positions = self.ended[:boundary].astype(np.int64)
            removed = self._base.arrays(removed_positions, [column])[column]
            counts = self._base.value_counts(attribute)
            self._value_counts[attribute] = counts.changed(removed, added)
        return self._value_counts[attribute]

    def changed_values(self, attribute: str) -> DistinctValues:
        """Returns the values of an attribute of the candidates in slots, those that are ended
        included. Positions are counted from `base_size`; values may repeat.
        """
        import pyarrow as pa

        if not self._tiers:
            return DistinctValues.of_column(pa.array([], self.types[f"attribute:{attribute}"]))
        # Of each tier they are computed once, however many snapshots have it.
        values_by_tier = [tier.distinct_values(attribute) for tier in self._tiers]
        positions = []
        numbers = []
        first_position = 0
        first_number = 0
        for tier, tier_values in zip(self._tiers, values_by_tier, strict=True):
            positions.append(tier_values.positions + first_position)
            numbers.append(tier_values.numbers + first_number)
            first_position += tier.size
            first_number += len(tier_values.values)
        values = pa.concat_arrays([tier_values.values for tier_values in values_by_tier])
        return DistinctValues(values, np.concatenate(positions), np.concatenate(numbers))


class AttributeValues(Protocol):
    """Candidates whose attribute values `ChangedAttributeIndex` reads."""

    @property
    def types(self) -> Mapping[str, Any]:
        """The `pyarrow.DataType` of each column."""

    def changed_values(self, attribute: str) -> DistinctValues:
        """Returns the candidates' values of an attribute; values may repeat."""


class PickedCandidates:
    """Some candidates of a store. Positions are counted among them."""

    def __init__(self, store: StoredColumns, positions: Positions) -> None:
        """Takes the store, and the positions of the candidates in it."""
        self._store = store
        self._positions = positions

    @property
    def types(self) -> Mapping[str, Any]:
        """The `pyarrow.DataType` of each column."""
        return self._store.types

    def changed_values(self, attribute: str) -> DistinctValues:
        """Returns the candidates' values of an attribute."""
        column = f"attribute:{attribute}"
        return DistinctValues.of_column(self._store.arrays(self._positions, [column])[column])


class ChangedAttributeIndex:
    """The candidates in the slots of a snapshot by the value of one attribute, those that are ended
    included, as `AttributeIndex` finds those of a store. Positions are counted from the first slot.
    Candidates that were picked of any store are found alike. Safe for any number of threads.

    Attributes:
      kind: The Arrow type of the attribute: int64, double, string, bool or list<string>.
    """

    def __init__(self, store: AttributeValues, attribute: str) -> None:
        """Takes a snapshot, whose values are read when they are needed first.

        Args:
          store: The snapshot, or the candidates that were picked.
          attribute: The name of the attribute.
        """
        self.kind = arrow.kind_of(store.types[f"attribute:{attribute}"])
        self._store = store
        self._attribute = attribute

    def rows_of(self, values: NDArray[Any]) -> RowPositions:
        """See `AttributeIndex.rows_of`."""
        import pyarrow as pa
        import pyarrow.compute as pc

        distinct_values, positions, numbers = self._distinct_values
        value_set = pa.array(values, distinct_values.type)
        if pa.types.is_floating(value_set.type):
            value_set = pc.add(value_set, 0.0)  # -0 becomes 0, which it equals
        is_wanted = pc.is_in(distinct_values, value_set=value_set).to_numpy(zero_copy_only=False)
        return _rows(positions[is_wanted[numbers]])

    def rows_between(self, bounds: Bounds) -> RowPositions:
        """See `AttributeIndex.rows_between`."""
        values, positions, numbers = self._distinct_values
        if bounds == ANY_VALUE:
            return _rows(positions)
        is_within = _within(arrow.values(values), bounds)
        return _rows(positions[is_within[numbers]])

    def rows_by_bounds(self, bounds: Bounds) -> tuple[RowPositions, bool]:
        """See `AttributeIndex.rows_by_bounds`; the positions are always those within."""
        return self.rows_between(bounds), True

    def numbers_between(
        self, bounds: Bounds, among: PositionSet
    ) -> tuple[RowPositions, NDArray[np.float64]]:
        """See `AttributeIndex.numbers_between`."""
        distinct_values, positions, numbers = self._distinct_values
        values = arrow.values(distinct_values)
        is_within = _within(values, bounds)[numbers]
        rows = _rows(positions[is_within])
        kept = among.where(rows)
        return rows[kept], values.astype(np.float64)[numbers[is_within][kept]]

    @cached_property
    def _distinct_values(self) -> DistinctValues:
        """The distinct values, and the candidates that have them."""
        return self._store.changed_values(self._attribute)


def _rows(positions: Positions) -> RowPositions:
    return positions.astype(np.uint32)


def _with_batch(
    tiers: Sequence[ColumnBatch], arrays: Mapping[str, Any], features: Sequence[str]
) -> list[ColumnBatch]:
    """Returns the columns of slots, with those of further slots behind them.

    Each tier is at least twice as large as the next one. So there are few, and a candidate is
    copied only as often as its tier doubles.
    """
    import pyarrow as pa

    kept_count = len(tiers)
    size = len(arrays["id"])
    while kept_count and tiers[kept_count - 1].size < 2 * size:
        kept_count -= 1
        size += tiers[kept_count].size
    joined_tiers = tiers[kept_count:]
    if joined_tiers:
        columns_by_tier = [*(tier.arrays for tier in joined_tiers), arrays]
        arrays = {
            name: pa.concat_arrays([columns[name] for columns in columns_by_tier])
            for name in arrays
        }
    return [*tiers[:kept_count], ColumnBatch.of_arrays(arrays, features)]


def _within(values: NDArray[Any], bounds: Bounds) -> NDArray[np.bool_]:
    """Returns which int64 or float64 values are within all bounds, compared exactly."""
    is_within = np.ones(values.size, np.bool_)
    for compare, bound in zip(_COMPARISONS, bounds, strict=True):
        if bound is None:
            continue
        if values.dtype == np.int64:
            is_exact = isinstance(bound, int)
        else:
            is_exact = isinstance(bound, float) or abs(bound) <= _EXACT_MAX
        # NumPy would round an integer to compare it with a float; Python does not.
        compared = values
        if not is_exact:
            compared = values.astype(object)
        is_within &= compare(compared, bound)
    return is_within
