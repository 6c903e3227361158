"""Candidates that are added, replaced and deleted while a store is served.

The candidates of the store keep their positions. Each one that is added or replaced gets a slot
behind them: its position is the size of the store and the number of the slot. The position of a
candidate that is replaced or deleted is ended: it keeps what it holds, but no id leads to it.

Slots become segments: stores of their own, which lie between the store of the bundle and further
slots. Only then are positions given anew, in the same order.

Snapshots never change. They share what is only ever appended to: the slots' columns, the slots of
each id, and for each position the number of the change that ended it. To a snapshot, a position is
ended if that number is not larger than its own.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from bundle.errors import FormatError
from bundle.format.indexes import CANDIDATES_MAX
from bundle.format.manifest import Corpus
from bundle.storage import arrow
from bundle.stores.attribute_index import Bound, DistinctValues
from bundle.stores.attribute_index import Positions as RowPositions
from bundle.stores.batches import checked_batch, checked_column
from bundle.stores.columns import ColumnBatch, Positions, StoredColumns
from bundle.stores.position_history import Layer, PositionHistory
from bundle.stores.reader import CandidateStore
from bundle.stores.value_counts import ValueCounts
from bundle.tables.id_values import distinct

_EXACT_MAX = 1 << 53
"""Integers up to this one are exact as floats."""

_COMPARISONS: tuple[Callable[[Any, Any], Any], ...] = (
    operator.ge,
    operator.gt,
    operator.le,
    operator.lt,
)
"""Comparisons of values with the bounds of a filter, in the order of its arguments."""


class Moment(NamedTuple):
    """A state of a store, among its changes.

    Attributes:
      number: The number of the last change before it.
      slot_count: The number of slots.
    """

    number: int
    slot_count: int


class StoreChanges:
    """The changes of one store: of candidates, or of contexts. One thread at a time uses it; the
    snapshots are safe for any number of threads.
    """

    def __init__(self, base: CandidateStore, corpus: Corpus) -> None:
        """Begins without changes.

        Args:
          base: The store.
          corpus: Its entry in the manifest.
        """
        self._base = base
        self._corpus = corpus
        self._types = base.types
        self._history = PositionHistory([Layer.of(base)], corpus)
        self._number = 0
        self._slot_count = 0
        self._tiers: list[ColumnBatch] = []
        self._ended = np.empty(0, np.uint32)
        self._newly_ended: list[Positions] = []
        self._store: ChangedStore | None = None

    @property
    def store(self) -> ChangedStore:
        """The candidates now, which later changes leave as they are."""
        if self._store is None:
            self._merge_ended()
            self._store = ChangedStore(
                self._corpus, self._history, self._number, self._tiers, self._ended
            )
        return self._store

    @staticmethod
    def of_segments(
        base: CandidateStore,
        corpus: Corpus,
        segments: Sequence[CandidateStore],
        ended: NDArray[np.uint32],
    ) -> StoreChanges:
        """Returns the candidates of a store and of segments behind it, without slots.

        Args:
          base: The store.
          corpus: Its entry in the manifest.
          segments: The segments, in the order of their positions.
          ended: The positions that are ended, ascending.
        """
        changes = StoreChanges(base, corpus)
        layers = [Layer.of(store) for store in (base, *segments)]
        # Change 0 ended them: before all changes that follow.
        first = 0
        for layer in layers:
            start, stop = ended.searchsorted([first, first + layer.size])
            layer.ends[ended[start:stop] - np.uint32(first)] = 0
            first += layer.size
        changes._history = PositionHistory(layers, corpus)
        changes._ended = ended
        return changes

    @property
    def moment(self) -> Moment:
        """The state now."""
        return Moment(self._number, self._slot_count)

    @property
    def segment_counts(self) -> list[tuple[int, int]]:
        """The number of positions of each segment, and the number of live ones."""
        return [
            (layer.size, int(np.count_nonzero(layer.is_live(self._number))))
            for layer in self._history.layers[1:]
        ]

    def rebased(
        self, segments: Sequence[CandidateStore], ended: NDArray[np.uint32], moment: Moment
    ) -> tuple[StoreChanges, Positions]:
        """Returns the same candidates, of which segments hold those that changed up to a moment.

        Args:
          segments: The segments, in the order of their positions.
          ended: The positions of the store and of the segments that were ended then, ascending.
          moment: The moment up to which the segments have the changes.

        Returns:
          The candidates, and [t] the positions that those in slots had before, ascending.

        Raises:
          FormatError: The segments held other candidates then.
        """
        before = self.store
        was_live = self._is_live(moment)
        rebased = StoreChanges.of_segments(self._base, self._corpus, segments, ended)
        live_count = int(np.count_nonzero(was_live))
        if rebased.store.count != live_count:
            raise FormatError(
                f"the segments hold {rebased.store.count} candidates of the store; {live_count} "
                "were expected"
            )

        # What happened since the moment is repeated on the segments: first the ends of candidates,
        # which also makes room for their new states, then the slots that are live.
        is_live = self._is_live(self.moment)
        (ended_since,) = (was_live & ~is_live[: was_live.size]).nonzero()
        if np.count_nonzero(rebased.delete(before.ids(ended_since)) < 0):
            raise FormatError("the segments lack candidates that the store had then")
        is_live[: was_live.size] = False
        (added_since,) = is_live.nonzero()
        if added_since.size:
            arrays = before.arrays(added_since, [*self._types])
            rebased._append(arrays, np.empty(0, np.int64))
        return rebased, added_since

    def _is_live(self, moment: Moment) -> NDArray[np.bool_]:
        """Returns which positions were live at a moment, up to its last slot."""
        history = self._history
        masks = [layer.is_live(moment.number) for layer in history.layers]
        masks.append(history.is_live(moment.number, moment.slot_count))
        return np.concatenate(masks)

    def upsert(self, batch: Any) -> Positions:
        """Adds candidates, in the place of those that have their ids.

        Args:
          batch: A `pyarrow.RecordBatch` of m candidates with distinct ids and all columns of the
            store, `id`, `feature:*`, `weights:*` and `attribute:*`, of types that can be cast to
            the store's.

        Returns:
          [m] int64, the new positions.

        Raises:
          FormatError: A column does not fit, is missing or is none of the store's; an id, a feature
            or a weight is null; an id comes twice; or there are too many positions. Nothing was
            changed.
        """
        arrays = checked_batch(batch, self._types)
        replaced = self._find(arrow.values(arrays["id"]))
        return self._append(arrays, replaced[replaced >= 0])

    def delete(self, ids: NDArray[Any]) -> Positions:
        """Deletes candidates.

        Args:
          ids: [m] int64, or [m] object holding str.

        Returns:
          [m] int64, the positions that the candidates had; -1 where there is none.

        Raises:
          UnknownCandidate: A value is no id of the store's kind. Nothing was changed.
        """
        positions = self._find(ids)
        ended = distinct(positions[positions >= 0])
        # A change that ends nothing would make a snapshot that equals the last one.
        if ended.size:
            self._begin_change()
            self._end(ended)
        return positions

    def set_attributes(
        self, ids: NDArray[Any], attributes: Mapping[str, Any]
    ) -> tuple[Positions, Positions]:
        """Gives candidates other values of some attributes. Each gets a new position with the same
        features and its other attributes.

        Args:
          ids: [m] int64, or [m] object holding str; distinct.
          attributes: A `pyarrow.Array` of m values by attribute, null where a candidate gets none.

        Returns:
          [m] int64, the positions that the candidates had, and [m] int64, the new ones; -1 in both
          where there is no such candidate.

        Raises:
          FormatError: The store has no such attribute; an attribute has another type or another
            number of values; an id comes twice; or there are too many positions. Nothing was
            changed.
          UnknownCandidate: A value is no id of the store's kind. Nothing was changed.
        """
        import pyarrow as pa

        old_positions = self._find(ids)
        columns = {
            f"attribute:{name}": self._checked_attribute(name, values, old_positions.size)
            for name, values in attributes.items()
        }
        existing = np.flatnonzero(old_positions >= 0)
        replaced = old_positions[existing]
        if distinct(replaced).size < replaced.size:
            repeated = _repeated(ids[existing])
            raise FormatError(f"{repeated!r} comes twice; distinct ids were expected")
        new_positions = np.full(old_positions.size, -1, np.int64)
        if not existing.size:
            return old_positions, new_positions

        # The other columns are copied from the former positions, which keep what they hold.
        unchanged = [name for name in self._types if name not in columns]
        arrays = self.store.arrays(replaced, unchanged)
        for name, values in columns.items():
            arrays[name] = values.take(pa.array(existing))
        new_positions[existing] = self._append(arrays, replaced)
        return old_positions, new_positions

    def _find(self, ids: NDArray[Any]) -> Positions:
        """Returns [m] int64 positions of ids now, -1 where there is none."""
        return self._history.positions(ids, "ids", self._number, self._slot_count)

    def _checked_attribute(self, name: str, values: Any, size: int) -> Any:
        column = f"attribute:{name}"
        if column not in self._types:
            raise FormatError(
                f"the store has no attribute {name!r}; it has "
                f"{', '.join(self._corpus.attributes) or 'none'}"
            )
        if len(values) != size:
            raise FormatError(
                f"attribute {name!r} has {len(values)} values for {size} candidates; one each was "
                "expected"
            )
        return checked_column(column, values, self._types[column])

    def _append(self, arrays: Mapping[str, Any], replaced: Positions) -> Positions:
        """Gives candidates that were checked the next slots, and ends the positions that they
        replace.
        """
        count = len(arrays["id"])
        first = self._history.size + self._slot_count
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
        self._history.append(ids)
        self._tiers = tiers
        self._slot_count += count
        return np.arange(first, first + count)

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


class ChangedStore(StoredColumns):
    """A snapshot of a store and its changes. Safe for any number of threads.

    Attributes:
      size: The number of positions, those that are ended included.
      base_size: How many of them are the bundle's; those of changed candidates follow.
      slots_start: The position of the first slot: those of segments lie before.
      count: The number of candidates.
      ended: [e] uint32, the positions that are ended, ascending.
    """

    def __init__(
        self,
        corpus: Corpus,
        history: PositionHistory,
        number: int,
        tiers: Sequence[ColumnBatch],
        ended: NDArray[np.uint32],
    ) -> None:
        """Takes a state of `StoreChanges`, which alone makes snapshots."""
        batches = [batch for layer in history.layers for batch in layer.store.batches]
        super().__init__([*batches, *tiers], corpus.features, [*corpus.attributes])
        base = history.layers[0].store
        self.base_size = base.size
        self.slots_start = history.size
        self.count = self.size - ended.size
        self.ended = ended
        self._base = base
        self._history = history
        self._number = number
        self._slot_count = self.size - history.size
        self._tiers = tiers

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
        return self._history.positions(ids, field, self._number, self._slot_count)

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
        included. Positions are counted from `slots_start`; values may repeat.
        """
        import pyarrow as pa

        if not self._tiers:
            return DistinctValues.of_column(self._changed_column(attribute))
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

    def _changed_column(self, attribute: str) -> Any:
        import pyarrow as pa

        column = f"attribute:{attribute}"
        if not self._tiers:
            return pa.array([], self.types[column])
        return pa.concat_arrays([tier.arrays[column] for tier in self._tiers])


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

    def rows_between(
        self, ge: Bound = None, gt: Bound = None, le: Bound = None, lt: Bound = None
    ) -> RowPositions:
        """See `AttributeIndex.rows_between`."""
        values, positions, numbers = self._distinct_values
        if ge is None and gt is None and le is None and lt is None:
            return _rows(positions)
        is_within = _within(arrow.values(values), ge, gt, le, lt)
        return _rows(positions[is_within[numbers]])

    def numbers_between(
        self, ge: Bound = None, le: Bound = None
    ) -> tuple[RowPositions, NDArray[np.float64]]:
        """See `AttributeIndex.numbers_between`."""
        distinct_values, positions, numbers = self._distinct_values
        values = arrow.values(distinct_values)
        is_within = _within(values, ge, None, le, None)[numbers]
        candidate_values = values.astype(np.float64)[numbers[is_within]]
        return _rows(positions[is_within]), candidate_values

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


def _within(values: NDArray[Any], ge: Bound, gt: Bound, le: Bound, lt: Bound) -> NDArray[np.bool_]:
    """Returns which int64 or float64 values are within all bounds, compared exactly."""
    is_within = np.ones(values.size, np.bool_)
    for compare, bound in zip(_COMPARISONS, (ge, gt, le, lt), strict=True):
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


def _repeated(ids: NDArray[Any]) -> int | str:
    """Returns the id that occurs most often."""
    counts: Counter[int | str] = Counter(ids.tolist())
    return counts.most_common(1)[0][0]
