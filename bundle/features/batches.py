"""Many features of one call at once: ids resolved a kind of rule at a time, one gather for each table.

Thousands of features would spend their time in numpy calls on a few ids each. Here they are laid side by side: the ids
of all features with one kind of rule are resolved together, the rows of all features of one table are read together,
and all bags of one combiner and width are combined together. Each answer is the same bits as of the feature alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bundle.features.columns import Activation, Column, Offsets, checked_together
from bundle.features.embedded import SEVERAL, UNKNOWN, Embedded
from bundle.features.indicators import Indicator
from bundle.features.rules import ids, joins
from bundle.features.small_tables import Home, SideBySide
from bundle.tables.combiner import combine_clipped, with_empty_row
from bundle.tables.id_values import Rows, Values
from bundle.tables.reader import TableReader

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
        self.rules = [ids.Known() if isinstance(each.rule, SEVERAL) else each.rule for each in self.all]
        self.several = {place: each.rule for place, each in enumerate(self.all) if isinstance(each.rule, SEVERAL)}
        self.alike = _runs([(id(home), each.alike) for home, each in zip(self.homes, self.all, strict=True)])
        self.texts = [place for place, each in enumerate(self.all) if each.text is not None]
        self.listed = [place for place, each in enumerate(self.all) if each.page.kind != "single"]
        self.cut = [place for place, each in enumerate(self.all) if each.page.length is not None]
        self.padded = [
            place for place, each in enumerate(self.all) if each.page.padding is not None and place not in self.several
        ]
        paddings = [self.all[place].page.padding for place in self.padded]
        self.paddings = None if any(isinstance(each, str) for each in paddings) else np.array(paddings, np.int64)
        """Those of `padded`, if all are numbers."""
        self.instead = np.array(
            [UNKNOWN if each.page.unknown.row is None else each.page.unknown.row for each in self.all]
        )
        """What unknown ids read, by place."""
        self.refusing = [place for place, each in enumerate(self.all) if each.page.unknown.rule == "refuse"]
        self._singles = [each.page.kind == "single" for each in self.all]

    def activations(self, columns: Mapping[str, Column], n: int) -> dict[str, Activation]:
        """Looks all features up; see FeatureReader.activations."""
        if not self.all:
            return {}
        sent = [columns.get(read) for read in self.reads]
        one_each = (n,)
        alone = [  # those that take their defaults, and those among whose values defaults stand
            column is None or (single and (column.offsets is not None or column.values.shape != one_each))
            for column, single in zip(sent, self._singles, strict=True)
        ]
        for place in self.several:
            alone[place] = False
        if any(alone):
            return self._apart(alone, columns, n)
        if self.several:
            given = [self.all[place].crossed(columns, n) for place in self.several]
            found = joins.resolve_all(list(self.several.values()), given, n)
            for place, made in zip(self.several, found, strict=True):
                sent[place] = None if made is None else Column(*made)
                alone[place] = made is None
            if any(alone):  # a few with very many values
                return self._apart(alone, columns, n)
        for place in self.texts:
            column = sent[place]
            sent[place] = None if column is None else self.all[place].words(column, n)
        call = _Call(self, [column for column in sent if column is not None], n)
        return {
            name: Activation(values, unknown)
            for name, values, unknown in zip(self._names, call.vectors(), call.unknown, strict=True)
        }

    def _apart(self, alone: Sequence[bool], columns: Mapping[str, Column], n: int) -> dict[str, Activation]:
        """Looks those up by themselves that are told, all others together."""
        found = self._without(alone).activations(columns, n)
        for name, each, by_itself in zip(self._names, self.all, alone, strict=True):
            if by_itself:
                found[name] = each.activation(columns, n)
        return found

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
        listed = [columns[place] for place in features.listed]
        checked = checked_together([features.reads[place] for place in features.listed], listed, n)
        self._offsets = dict(zip(features.listed, checked, strict=True))
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
        resolved = ids.resolve_all(features.rules, values)
        for place in _with_padding(features, values):
            resolved[place] = features.all[place].padded(resolved[place], values[place])
        self._ends = np.cumsum([0, *(rows.size for rows in resolved)])
        self._rows = np.concatenate(resolved)
        self.unknown = [0] * len(columns)
        if np.count_nonzero(self._rows < 0):
            self._replace_unknown(values)
        if self._weights:
            self._leave_out()

    def _replace_unknown(self, values: Sequence[Values]) -> None:
        """Applies the unknown rules; see Embedded.known."""
        unknown = self._rows == UNKNOWN
        places = np.searchsorted(self._ends, np.flatnonzero(unknown), side="right") - 1
        self.unknown = np.bincount(places, minlength=len(values)).tolist()
        for place in self._features.refusing:
            if self.unknown[place]:
                sent = None if place in self._features.several else values[place]
                self._features.all[place].known(self._of(place), sent)
        self._rows[unknown] = self._features.instead[places]

    def _leave_out(self) -> None:
        """Makes rows negative that their weights leave out of bags; those with weights are not like those without."""
        homes, features = self._features.homes, self._features.all
        for place, weights in self._weights.items():
            rows = self._of(place)
            rows[~features[place].kept(rows, weights)] = UNKNOWN
        keys = [(id(homes[place]), each.alike, place in self._weights) for place, each in enumerate(features)]
        self._alike = _runs(keys)

    def _of(self, first: int, end: int | None = None) -> Rows:
        """Returns the rows of a place, or of those up to another."""
        return self._rows[self._ends[first] : self._ends[first + 1 if end is None else end]]

    def vectors(self) -> list[NDArray[Any]]:
        """Reads and combines what is alike of a table at once; returns [n, dim] or [n, length, dim] of each feature."""
        found: list[NDArray[Any]] = [_NO_ROWS] * len(self._features.all)
        for first, end in self._alike:
            home, rows = self._features.homes[first], self._of(first, end)
            if isinstance(home, SideBySide):
                starts = self._features.firsts[first:end].repeat(np.diff(self._ends[first : end + 1]))
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
            if page.empty_row is not None:
                rows, offsets, beside = with_empty_row(rows, offsets, beside, self._rows_of(places, "empty_row"))
            if page.max_norm is None:
                found = home.bags(rows, offsets, feature.combiner, beside)
            else:
                found = combine_clipped(home.take, page.max_norm, rows, offsets, feature.combiner, beside)
            return found.reshape(len(places), n, dim)
        length = page.length or 0
        example = np.repeat(np.arange(lengths.size), lengths)
        whole = np.zeros((lengths.size, length, dim), np.float32)
        if page.filler_row is not None:
            whole[...] = home.take(self._rows_of(places, "filler_row"))[:, np.newaxis]
        whole[example, np.arange(example.size) - offsets[example]] = home.take(rows)
        return whole.reshape(len(places), n, length, dim)

    def _rows_of(self, places: Sequence[int], which: Literal["empty_row", "filler_row"]) -> Rows:
        """Returns what each bag or sequence of some features reads where it holds nothing."""
        rows = np.array([getattr(self._features.all[place].page, which) for place in places])
        return (rows + self._features.firsts[places]).repeat(self._n)


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
