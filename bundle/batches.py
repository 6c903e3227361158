"""Many features of one call at once: ids resolved a kind of rule at a time, one gather for each table.

Thousands of features would spend their time in numpy calls on a few ids each. Here they are laid side by side: the ids
of all features with one kind of rule are resolved together, the rows of all features of one table are read together,
and all bags of one combiner and width are combined together. Each answer is the same bits as of the feature alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle import ids
from bundle.columns import Activation, Column, Offsets, checked_offsets
from bundle.crosses import Crossed
from bundle.embedded import Embedded
from bundle.id_values import Rows, Values
from bundle.indicators import Indicator
from bundle.small_tables import Home, SideBySide
from bundle.tables import TableReader

_RESTS_MAX = 32
"""Sets of features without those that take their defaults, kept for the next call."""
_NO_ROWS = np.empty(0, np.int64)


class Features:
    """Features that are looked up together, in the order in which their rows are read: by table, then by likeness.

    What is made here is kept from call to call.
    """

    def __init__(self, features: Mapping[str, Embedded], small: Mapping[int, Home]) -> None:
        """Takes features by name, and where the rows of small tables are read, by the table's `id`."""
        self._small = small
        self._rests: dict[bytes, Features] = {}
        found = {name: small.get(id(each.table)) or Home(each.table) for name, each in features.items()}
        groups: dict[int, dict[Any, list[str]]] = {}
        for name, each in features.items():
            groups.setdefault(id(found[name].rows), {}).setdefault(each.alike, []).append(name)
        self._names = [name for table in groups.values() for group in table.values() for name in group]
        self.all = [features[name] for name in self._names]
        self.homes = [found[name].rows for name in self._names]
        self.firsts = np.array([found[name].first for name in self._names], np.int64)
        self.reads = [each.read for each in self.all]
        self.rules = [rule for each in self.all if not isinstance(rule := each.rule, Crossed)]
        self.alike = _runs([(id(home), each.alike) for home, each in zip(self.homes, self.all, strict=True)])
        self.listed = [place for place, each in enumerate(self.all) if each.page.kind != "single"]
        self.cut = [place for place, each in enumerate(self.all) if each.page.length is not None]
        self.padded = [place for place, each in enumerate(self.all) if each.page.padding is not None]
        paddings = [self.all[place].page.padding for place in self.padded]
        self.paddings = None if any(isinstance(each, str) for each in paddings) else np.array(paddings, np.int64)
        """Those of `padded`, if all are numbers."""
        self._singles = [each.page.kind == "single" for each in self.all]
        self._apart = [each.apart for each in self.all]

    def activations(self, columns: Mapping[str, Column], n: int) -> dict[str, Activation]:
        """Looks all features up; see FeatureReader.activations."""
        if not self.all:
            return {}
        sent = [columns.get(read) for read in self.reads]
        one_each = (n,)
        alone = [  # those that no others are like, and those among whose values defaults stand
            apart or column is None or (single and (column.offsets is not None or column.values.shape != one_each))
            for column, single, apart in zip(sent, self._singles, self._apart, strict=True)
        ]
        if any(alone):
            found = self._without(alone).activations(columns, n)
            for name, each, by_itself in zip(self._names, self.all, alone, strict=True):
                if by_itself:
                    found[name] = each.activation(columns, n)
            return found
        call = _Call(self, [column for column in sent if column is not None], n)
        return {
            name: Activation(values, unknown)
            for name, values, unknown in zip(self._names, call.vectors(), call.unknown, strict=True)
        }

    def _without(self, left_out: Sequence[bool]) -> Features:
        key = bytes(left_out)  # callers of a kind leave the same features out
        found = self._rests.get(key)
        if found is None:
            kept = {name: each for name, each, out in zip(self._names, self.all, left_out, strict=True) if not out}
            found = Features(kept, self._small)
            if len(self._rests) < _RESTS_MAX:
                self._rests[key] = found
        return found


def unshared(features: Mapping[str, Embedded], small: Mapping[int, Home]) -> set[str]:
    """Returns those that gain nothing beside others: their ids are rows, one each, of a table that no other reads."""
    readers = Counter(id(each.table) for each in features.values())
    return {
        name
        for name, each in features.items()
        if each.reads_rows and readers[id(each.table)] == 1 and id(each.table) not in small
    }


class _Call:
    """What was sent for some features, as rows, negative for what contributes nothing."""

    def __init__(self, features: Features, columns: Sequence[Column], n: int) -> None:
        self._features, self._n = features, n
        self._alike = features.alike
        self._offsets = _offsets(features, columns, n)
        self._weights: dict[int, NDArray[np.float32]] = {}
        for place, column in enumerate(columns):
            if column.weights is not None:
                weights = features.all[place].weights(column)
                if weights is not None:
                    self._weights[place] = weights
        values = [column.values for column in columns]
        for place in features.cut:
            length = features.all[place].page.length or 0
            values[place], self._offsets[place] = _cut(values[place], self._offsets[place], length)
        self._rows = ids.resolve_all(features.rules, values)
        for place in _with_padding(features, values):
            self._rows[place] = features.all[place].padded(self._rows[place], values[place])
        self.unknown = [0] * len(columns)
        with_negative = _holders(self._rows, np.concatenate(self._rows) < 0)
        if self._weights or with_negative:
            self._leave_out(values, sorted({*self._weights, *with_negative}))

    def _leave_out(self, values: Sequence[Values], places: Sequence[int]) -> None:
        """Applies the unknown rules at these places, and leaves out of bags what does not count."""
        for place in places:
            each = self._features.all[place]
            rows, self.unknown[place] = each.known(self._rows[place], values[place])
            if each.page.kind == "bag":
                weights = self._weights.get(place)
                kept = each.kept(rows, weights)
                if np.count_nonzero(kept) < kept.size:
                    self._offsets[place] = np.concatenate([[0], np.cumsum(kept)])[self._offsets[place]]
                    rows = rows[kept]
                    if weights is not None:
                        self._weights[place] = weights[kept]
            self._rows[place] = rows
        if self._weights:  # those with weights are not like those without
            homes, all_ = self._features.homes, self._features.all
            keys = [(id(homes[place]), each.alike, place in self._weights) for place, each in enumerate(all_)]
            self._alike = _runs(keys)

    def vectors(self) -> list[NDArray[Any]]:
        """Reads and combines what is alike of a table at once; returns [n, dim] or [n, length, dim] of each feature."""
        found: list[NDArray[Any]] = [_NO_ROWS] * len(self._rows)
        for first, end in self._alike:
            home, rows = self._features.homes[first], self._rows[first]
            if end - first > 1:
                rows = np.concatenate(self._rows[first:end])
            if isinstance(home, SideBySide):
                starts = self._features.firsts[first:end].repeat([each.size for each in self._rows[first:end]])
                rows = np.where(rows < 0, rows, rows + starts)
            found[first:end] = self._read(home, rows, range(first, end))
        return found

    def _read(self, home: TableReader | SideBySide | Indicator, rows: Rows, places: Sequence[int]) -> NDArray[Any]:
        """Returns [features, n, dim] of features that are alike, [features, n, length, dim] of sequences."""
        feature, n = self._features.all[places[0]], self._n
        page, dim = feature.page, feature.table.dim
        if page.kind == "single":
            return home.take(rows).reshape(len(places), n, dim)
        starts = np.concatenate([self._offsets[place] for place in places]).reshape(len(places), n + 1)
        lengths = (starts[:, 1:] - starts[:, :-1]).reshape(-1)
        offsets = np.zeros(lengths.size + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        if page.kind == "bag":
            weights = [self._weights[place] for place in places if place in self._weights]
            beside = np.concatenate(weights) if weights else None
            return home.bags(rows, offsets, feature.combiner, beside).reshape(len(places), n, dim)
        length = page.length or 0
        example = np.repeat(np.arange(lengths.size), lengths)
        whole = np.zeros((lengths.size, length, dim), np.float32)
        whole[example, np.arange(example.size) - offsets[example]] = home.take(rows)
        return whole.reshape(len(places), n, length, dim)


def _offsets(features: Features, columns: Sequence[Column], n: int) -> dict[int, Offsets]:
    """Returns the checked offsets of bags and sequences by place; all are checked together, unless some are odd."""
    given = [(place, columns[place]) for place in features.listed]
    plain = [
        offsets
        for _, column in given
        if (offsets := column.offsets) is not None and offsets.dtype == np.int64 and offsets.shape == (n + 1,)
    ]
    if plain and len(plain) == len(given) and all(column.values.ndim == 1 for _, column in given):
        whole = np.concatenate(plain).reshape(-1, n + 1)
        sound = (whole[:, 0] == 0) & (whole[:, -1] == [column.values.size for _, column in given])
        if sound.all() and not np.count_nonzero(whole[:, 1:] < whole[:, :-1]):
            return dict(zip(features.listed, whole, strict=True))
    return {place: checked_offsets(features.reads[place], column, n) for place, column in given}


def _holders(arrays: Sequence[NDArray[Any]], found: NDArray[np.bool_]) -> list[int]:
    """Returns which arrays, laid end to end, hold a place at which something was found; some more than once."""
    ends = np.cumsum([array.size for array in arrays])
    places: list[int] = np.searchsorted(ends, np.flatnonzero(found), side="right").tolist()
    return places


def _with_padding(features: Features, values: Sequence[Values]) -> Sequence[int]:
    """Returns the places of features among whose values padding may be."""
    padded, paddings = features.padded, features.paddings
    sent = [values[place] for place in padded]
    if paddings is None or not sent or any(array.dtype != np.int64 or array.ndim != 1 for array in sent):
        return padded
    sizes = [array.size for array in sent]
    found = np.concatenate(sent) == paddings.repeat(sizes)
    return [padded[place] for place in sorted(set(_holders(sent, found)))]


def _runs(keys: Sequence[Any]) -> list[tuple[int, int]]:
    """Returns where equal keys follow one another: first place and end of each run."""
    starts = [place for place, key in enumerate(keys) if not place or key != keys[place - 1]]
    return list(pairwise([*starts, len(keys)]))


def _cut(values: Values, offsets: Offsets, length: int) -> tuple[Values, Offsets]:
    lengths = offsets[1:] - offsets[:-1]
    if int(lengths.max(initial=0)) <= length:
        return values, offsets
    place = np.arange(values.size) - offsets[:-1].repeat(lengths)
    kept = np.minimum(lengths, length)
    return values[place < length], np.concatenate([[0], np.cumsum(kept)])
