"""Features looked up together: ids resolved a kind of rule at a time, one gather for each table.

Thousands of features would spend their time in numpy calls on a few ids each. Here they are laid side by side: ids with
alike rules are resolved together, the rows of all features of one table are read together, and bags of one combiner and
width are combined together. What TensorFlow's CPU lookup does, as rules:
- A single feature reads one row per example, bit for bit.
- A bag's rows are combined as `bundle/tables/combiner.py` says; an empty bag gives zeros.
- A sparse bag drops weights <= 0 first, unless it sums; a ragged one drops nothing.
- A sequence is cut at its end to `length`, or filled with zeros.
- Unknown ids follow the feature's unknown rule in all of them; padding is left out in all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, groupby, pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bundle.features.columns import Activation, Column, checked_together
from bundle.features.embedded import Embedded
from bundle.features.rules.ids import resolve_all, within
from bundle.features.sources import Fetched, Indicator, RemoteRows, RemoteTable, RowReader, Source
from bundle.tables.combiner import combine_clipped, with_empty_row
from bundle.tables.id_values import Rows, Values, distinct, is_padding
from bundle.tables.offsets import Offsets, offsets_of
from bundle.tables.reader import TableReader

_UNKNOWN, _LEFT_OUT = -1, -2
"""In place of a row: an id that the table does not know; an id that is none."""


class Batch:
    """Features in the order in which their rows are read: by table, then by how they are combined."""

    def __init__(self, features: Mapping[str, Embedded], small: Mapping[object, Source]) -> None:
        """Takes features by name, and where the rows of small tables are read, by table."""
        sources = {
            name: small.get(each.table) or _source(each.table) for name, each in features.items()
        }
        groups: dict[Any, dict[Any, list[str]]] = {}
        for name, each in features.items():
            groups.setdefault(sources[name].rows, {}).setdefault(each.alike, []).append(name)
        runs = [group for table in groups.values() for group in table.values()]
        self.names = [name for run in runs for name in run]
        self.features = [features[name] for name in self.names]
        self.runs = list(pairwise(offsets_of([len(run) for run in runs]).tolist()))
        """First feature of those that are alike and read one source, and the end of them."""
        self.sources = [sources[name].rows for name in self.names]
        self.firsts = np.array([sources[name].first for name in self.names], np.int64)
        entries = [each.entry for each in self.features]
        self.rules, self.inputs = (
            [each.rule for each in self.features],
            [each.name for each in self.features],
        )
        self.listed = [place for place, entry in enumerate(entries) if entry.kind != "single"]
        self.padded = [place for place, entry in enumerate(entries) if entry.padding is not None]
        self.from_end = [place for place, entry in enumerate(entries) if entry.from_end]
        self.refusing = [
            place for place, entry in enumerate(entries) if entry.unknown.rule == "refuse"
        ]
        self.limits = np.array([each.table.rows for each in self.features], np.uint64)
        self.instead = np.array(
            [_UNKNOWN if entry.unknown.row is None else entry.unknown.row for entry in entries]
        )
        self.remote: list[tuple[RemoteRows, range, Rows]] = []
        """Of remote rows the features that read them, and what those read beside the rows of ids."""
        for rows, group in groupby(range(len(self.names)), self.sources.__getitem__):
            if isinstance(rows, RemoteRows):
                places = list(group)
                self.remote.append(
                    (rows, range(places[0], places[-1] + 1), self._always_read(places))
                )

    def _always_read(self, places: Sequence[int]) -> Rows:
        """Returns the rows that features read in place of unknown ids, of empty bags, and behind sequences."""
        read = list[int]()
        for place in places:
            entry = self.features[place].entry
            given = [
                row
                for row in (entry.unknown.row, entry.empty_row, entry.filler_row)
                if row is not None
            ]
            read += [self.firsts[place] + row for row in given]
        return np.array(read, np.int64)

    def activations(
        self, columns: Mapping[str, Column], n: int, fetched: Fetched | None = None
    ) -> dict[str, Activation]:
        """Looks all features up; see FeatureReader.activations."""
        if not self.features:
            return {}
        ids = _Ids(self, [each.ids(columns, n) for each in self.features], n)
        unknown = ids.apply_unknown_rules()
        if fetched is not None:
            ids.use_fetched(fetched)
        return {
            name: Activation(vectors, count if count and each.is_sent(columns) else 0)
            for name, each, vectors, count in zip(
                self.names, self.features, ids.vectors(), unknown, strict=True
            )
        }

    def wanted(self, columns: Mapping[str, Column], n: int) -> dict[str, Rows]:
        """Returns the distinct remote rows that `activations` reads, by layout."""
        if not self.remote:
            return {}
        ids = _Ids(self, [each.ids(columns, n) for each in self.features], n)
        ids.apply_unknown_rules()
        return ids.wanted()

    def rows(self, columns: Mapping[str, Column], n: int) -> tuple[Rows, list[Offsets]]:
        """Returns rows, -1 of unknown ids and of padding, and of each feature that is no single the offsets."""
        ids = _Ids(self, [each.ids(columns, n) for each in self.features], n, whole=True)
        return np.maximum(ids.rows, _UNKNOWN), [ids.offsets[place] for place in self.listed]


class _Ids:
    """Ids of the features of a batch, as rows end to end; negative is what contributes nothing."""

    def __init__(
        self, batch: Batch, columns: Sequence[Column], n: int, whole: bool = False
    ) -> None:
        self._batch, self._n = batch, n
        self._sources: list[Any] = list(
            batch.sources
        )  # with fetched rows in the place of remote ones
        listed = [columns[place] for place in batch.listed]
        checked = checked_together([batch.inputs[place] for place in batch.listed], listed, n)
        self.offsets = dict(zip(batch.listed, checked, strict=True))
        self.values = [column.values for column in columns]
        for place in batch.listed:
            length = batch.features[place].entry.length
            if length is not None and not whole:
                self.values[place], self.offsets[place] = _cut(
                    self.values[place], self.offsets[place], length
                )
        self._weights = {
            place: each.weights for place, each in enumerate(columns) if each.weights is not None
        }
        resolved = resolve_all(batch.rules, batch.inputs, self.values)
        sizes = [rows.size for rows in resolved]
        self._ends = list(accumulate(sizes, initial=0))
        self.rows: Rows = np.concatenate(resolved)
        for place in batch.from_end:
            rows = self._of(place)
            rows[rows < 0] += batch.features[place].table.rows
        self.rows = within(self.rows, batch.limits.repeat(sizes))
        for place in batch.padded:
            padding = batch.features[place].entry.padding
            none = None if padding is None else is_padding(padding, self.values[place])
            if none is not None:
                self._of(place)[none] = _LEFT_OUT

    def apply_unknown_rules(self) -> list[int]:
        """Puts the row of its rule in place of each unknown id; returns how many each feature has.

        Raises:
          UnknownRefused: a feature has some and refuses them.
        """
        unknown = np.flatnonzero(self.rows == _UNKNOWN)
        if not unknown.size:
            return [0] * len(self.values)
        places = np.searchsorted(self._ends, unknown, side="right") - 1
        counts: list[int] = np.bincount(places, minlength=len(self.values)).tolist()
        for place in self._batch.refusing:
            if counts[place]:
                raise self._batch.features[place].refuse(
                    self.values[place][self._of(place) == _UNKNOWN][0]
                )
        self.rows[unknown] = self._batch.instead[places]
        return counts

    def wanted(self) -> dict[str, Rows]:
        """Returns the distinct remote rows that are read, ascending, by layout."""
        found = {}
        for rows, places, always in self._batch.remote:
            read = np.concatenate([self._in_source(places), always])
            found[rows.name] = distinct(read[read >= 0])
        return found

    def use_fetched(self, fetched: Fetched) -> None:
        """Has remote rows read where they were fetched to. Lost ones follow the unknown rule of their feature.

        Raises:
          UnknownRefused: a feature refuses unknown ids, and a row of it is lost.
        """
        for rows, places, _ in self._batch.remote:
            source = fetched[rows.name]
            self._sources[places.start : places.stop] = [source] * len(places)
            for place in places if source.lost is not None else ():
                lost = source.is_lost(self._in_source(range(place, place + 1)))
                if lost.any():
                    if place in self._batch.refusing:
                        raise self._batch.features[place].refuse(self.values[place][lost][0])
                    self._of(place)[lost] = self._batch.instead[place]

    def vectors(self) -> list[NDArray[Any]]:
        """Reads and combines what is alike of a table at once; returns [n, dim] or [n, length, dim] of each feature."""
        found: list[NDArray[Any]] = []
        for place, weights in self._weights.items():
            entry = self._batch.features[place].entry
            if entry.encoding == "sparse" and entry.combiner != "sum":
                self._of(place)[weights <= 0] = _UNKNOWN
        for first, end in self._batch.runs:
            found.extend(self._read(self._in_source(range(first, end)), range(first, end)))
        return found

    def _in_source(self, places: range) -> Rows:
        """Returns the rows of features that read one source, as rows of that source."""
        first, end = places.start, places.stop
        rows, starts = self.rows[self._ends[first] : self._ends[end]], self._batch.firsts[first:end]
        if not starts.any():
            return rows
        return np.where(rows < 0, rows, rows + starts.repeat(np.diff(self._ends[first : end + 1])))

    def _of(self, place: int) -> Rows:
        return self.rows[self._ends[place] : self._ends[place + 1]]

    def _read(self, rows: Rows, places: range) -> NDArray[Any]:
        """Returns [features, n, dim] of features that are alike, [features, n, length, dim] of sequences."""
        feature, n = self._batch.features[places[0]], self._n
        source: RowReader = self._sources[places[0]]
        entry, dim = feature.entry, feature.table.dim
        if entry.kind == "single":
            return source.take(rows).reshape(len(places), n, dim)
        offsets = self._joined_offsets(places)
        if entry.kind == "bag":
            weights = self._weights_of(places)
            if entry.empty_row is not None:
                rows, offsets, weights = with_empty_row(
                    rows, offsets, weights, self._rows_of(places, "empty_row")
                )
            if entry.max_norm is None:
                found = source.bags(rows, offsets, feature.combiner, weights)
            else:
                found = combine_clipped(
                    source.take, entry.max_norm, rows, offsets, feature.combiner, weights
                )
            return found.reshape(len(places), n, dim)
        length, lengths = entry.length or 0, np.diff(offsets)
        example = np.repeat(np.arange(lengths.size), lengths)
        padded = np.zeros((lengths.size, length, dim), np.float32)
        if entry.filler_row is not None:
            padded[...] = source.take(self._rows_of(places, "filler_row"))[:, np.newaxis]
        padded[example, np.arange(example.size) - offsets[example]] = source.take(rows)
        return padded.reshape(len(places), n, length, dim)

    def _joined_offsets(self, places: range) -> Offsets:
        """Returns the offsets of some features, end to end."""
        if len(places) == 1:
            return self.offsets[places[0]]
        return offsets_of(np.concatenate([np.diff(self.offsets[place]) for place in places]))

    def _weights_of(self, places: range) -> NDArray[np.float32] | None:
        """Returns the weights of some features end to end, 1 for those without; None: all are."""
        if not any(place in self._weights for place in places):
            return None
        given = [self._weights.get(place) for place in places]
        sizes = [self.values[place].size for place in places]
        parts = [
            np.ones(size, np.float32) if each is None else each
            for each, size in zip(given, sizes, strict=True)
        ]
        return np.concatenate(parts)

    def _rows_of(self, places: range, which: Literal["empty_row", "filler_row"]) -> Rows:
        """Returns what each bag or sequence of some features reads where it holds nothing."""
        rows = np.array([getattr(self._batch.features[place].entry, which) for place in places])
        return (rows + self._batch.firsts[places.start : places.stop]).repeat(self._n)


def _source(table: TableReader | RemoteTable | Indicator) -> Source:
    return Source(table.among, table.first) if isinstance(table, RemoteTable) else Source(table)


def _cut(values: Values, offsets: Offsets, length: int) -> tuple[Values, Offsets]:
    lengths = np.diff(offsets)
    if int(lengths.max(initial=0)) <= length:
        return values, offsets
    place = np.arange(values.size) - offsets[:-1].repeat(lengths)
    return values[place < length], offsets_of(np.minimum(lengths, length))
