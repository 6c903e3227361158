"""Features looked up together: ids resolved a kind of rule at a time, one gather for each table.

Thousands of features would spend their time in numpy calls on a few ids each. Here they are laid
side by side: ids with alike rules are resolved together, the rows of all features of one table are
read together, and bags of one combiner and width are combined together. What TensorFlow's CPU
lookup does, as rules:
- A single feature reads one row per example, bit for bit.
- A bag's rows are combined as `bundle/tables/combiner.py` says; an empty bag gives zeros.
- A sparse bag drops weights <= 0 first, unless it sums; a ragged one drops nothing.
- A sequence whose model takes lists of any length is cut at its end to `length`, or filled with
  zeros. Inputs of a fixed number of values are fitted before (`input_lengths.py`).
- Unknown ids follow the feature's unknown rule in all of them; padding is left out in all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, groupby, pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bundle.errors import RowUnavailable
from bundle.features.columns import Activation, Column, checked_together
from bundle.features.ids.rules import RuleSet, within
from bundle.features.sources import (
    Fetched,
    Indicator,
    RemoteRows,
    RemoteTable,
    RowReader,
    RowSource,
)
from bundle.features.table_feature import TableFeature
from bundle.tables.combiner import combine_clipped, with_empty_row
from bundle.tables.id_values import Rows, Values, distinct, is_padding
from bundle.tables.offsets import Offsets, lengths_of, offsets_of
from bundle.tables.reader import TableReader

_UNKNOWN = -1
"""The row of an id that the table does not know."""
_LEFT_OUT = -2
"""The row of a value that is padding, and no id at all."""


class JointLookup:
    """Features in the order in which their rows are read: by table, then by how they
    are combined.
    """

    def __init__(
        self, features: Mapping[str, TableFeature], small: Mapping[object, RowSource]
    ) -> None:
        """Takes features by name, and the sources of small tables, by table."""
        # Sorted into runs: features of one source follow each other, those that are combined alike
        # side by side, so that a run is a slice of all rows.
        sources: dict[str, RowSource] = {}
        names_by_source: dict[Any, dict[Any, list[str]]] = {}
        for name, feature in features.items():
            source = small.get(feature.table) or _source(feature.table)
            sources[name] = source
            names_by_kind = names_by_source.setdefault(source.rows, {})
            names_by_kind.setdefault(feature.alike, []).append(name)
        runs = [names for kinds in names_by_source.values() for names in kinds.values()]
        run_ends = offsets_of([len(names) for names in runs]).tolist()

        self.runs = list(pairwise(run_ends))
        """Features that are alike and read one source: the first one, and the one after the
        last.
        """
        self.names = [name for names in runs for name in names]
        self.features = [features[name] for name in self.names]
        self.inputs = [feature.input_name for feature in self.features]
        self.rules = RuleSet([feature.rule for feature in self.features], self.inputs)

        self.sources = [sources[name].rows for name in self.names]
        self.firsts = np.array([sources[name].first for name in self.names], np.int64)
        self.is_shifted = bool(self.firsts.any())
        self.limits = np.array([feature.table.rows for feature in self.features], np.uint64)
        self.remote = self._remote_readers()
        """Remote rows, the features that read them, and the rows that these always read."""

        self.listed: list[int] = []
        """Bags and sequences: each example has a list of ids."""
        self.cut: list[tuple[int, int]] = []
        """Sequences and their lengths."""
        self.padded: list[tuple[int, int | str]] = []
        """Features whose values may be padding, and the value that is padding."""
        self.from_end: list[int] = []
        """Features whose negative ids count from the end of the table."""
        self.rejecting: list[int] = []
        """Features that reject unknown ids."""
        unknown_rows = []
        for index, feature in enumerate(self.features):
            entry = feature.entry
            if entry.kind != "single":
                self.listed.append(index)
            if entry.length is not None:
                self.cut.append((index, entry.length))
            if entry.padding is not None:
                self.padded.append((index, entry.padding))
            if entry.from_end:
                self.from_end.append(index)
            if entry.unknown.rule == "refuse":
                self.rejecting.append(index)
            row = entry.unknown.row
            if row is None:
                row = _UNKNOWN
            unknown_rows.append(row)
        self.listed_inputs = [self.inputs[index] for index in self.listed]
        self.unknown_rows = np.array(unknown_rows)

    def _remote_readers(self) -> list[tuple[RemoteRows, range, Rows]]:
        """Returns what `remote` holds."""
        remote = []
        for rows, group in groupby(range(len(self.names)), self.sources.__getitem__):
            if isinstance(rows, RemoteRows):
                indices = list(group)
                readers = range(indices[0], indices[-1] + 1)
                remote.append((rows, readers, self._always_read(readers)))
        return remote

    def _always_read(self, indices: range) -> Rows:
        """Returns the rows that features read whatever the ids are: those of empty bags, behind the
        end of sequences, and, where they replace lost rows, of unknown ids.
        """
        always_read = list[int]()
        for index in indices:
            entry = self.features[index].entry
            rows = [entry.empty_row, entry.filler_row]
            table = self.features[index].table
            if isinstance(table, RemoteTable) and table.replaces_lost:
                rows.append(entry.unknown.row)
            always_read += [self.firsts[index] + row for row in rows if row is not None]
        return np.array(always_read, np.int64)

    def activations(
        self,
        columns: Mapping[str, Column],
        n: int,
        fetched: Fetched | None = None,
    ) -> dict[str, Activation]:
        """Looks all features up; see FeatureReader.activations."""
        if not self.features:
            return {}
        # Unknown rules before fetched rows, since they decide which rows are read.
        ids = self._ids(columns, n)
        unknown = ids.apply_unknown_rules()
        if fetched is not None:
            ids.use_fetched(fetched)
        vectors = ids.vectors()
        activations = {}
        for index, (name, feature) in enumerate(zip(self.names, self.features, strict=True)):
            count = unknown[index]
            if count and not feature.is_sent(columns):
                count = 0  # a default that the table does not know is not the caller's mistake
            activations[name] = Activation(vectors[index], count)
        return activations

    def remote_rows(self, columns: Mapping[str, Column], n: int) -> dict[str, Rows]:
        """Returns the distinct remote rows that `activations` reads, by layout."""
        if not self.remote:
            return {}
        ids = self._ids(columns, n)
        ids.apply_unknown_rules()
        return ids.remote_rows()

    def rows(self, columns: Mapping[str, Column], n: int) -> tuple[Rows, list[Offsets]]:
        """Returns the rows of all features, -1 for unknown ids and padding, and the offsets of each
        bag and sequence. Sequences are not cut.
        """
        ids = self._ids(columns, n, whole=True)
        offsets = [ids.offsets[index] for index in self.listed]
        return np.maximum(ids.rows, _UNKNOWN), offsets

    def _ids(self, columns: Mapping[str, Column], n: int, whole: bool = False) -> _Ids:
        """Returns the ids of all features, with sequences of any length if they stay whole."""
        ids = [feature.ids(columns, n) for feature in self.features]
        return _Ids(self, ids, n, whole)


class _Ids:
    """Ids of the features of a joint lookup, as rows end to end.

    A negative row contributes nothing. Features are named by their index in the lookup.
    """

    def __init__(
        self, joint: JointLookup, columns: Sequence[Column], n: int, whole: bool = False
    ) -> None:
        """Resolves ids.

        Args:
          joint: The features.
          columns: The ids of each feature.
          n: The number of examples.
          whole: Whether sequences stay as long as they are.
        """
        self._joint = joint
        self._n = n
        # use_fetched() replaces remote rows by fetched ones.
        self._sources: list[Any] = list(joint.sources)
        self._weights = {
            index: column.weights
            for index, column in enumerate(columns)
            if column.weights is not None
        }
        self.values = [column.values for column in columns]
        self.offsets: dict[int, Offsets] = {}
        if joint.listed:
            listed = [columns[index] for index in joint.listed]
            checked = checked_together(joint.listed_inputs, listed, n)
            self.offsets = dict(zip(joint.listed, checked, strict=True))
        if not whole:
            for index, length in joint.cut:
                cut = _cut(self.values[index], self.offsets[index], length)
                self.values[index], self.offsets[index] = cut

        # From here on, the rows of all features lie in one array, one feature after the other.
        resolved = joint.rules.resolve(self.values)
        sizes = [rows.size for rows in resolved]
        self._ends = list(accumulate(sizes, initial=0))
        self.rows: Rows = np.concatenate(resolved)
        for index in joint.from_end:
            rows = self._feature_rows(index)
            rows[rows < 0] += joint.features[index].table.rows
        # Rows past the end of a table are unknown ids, too.
        self.rows = within(self.rows, joint.limits.repeat(sizes))
        for index, padding in joint.padded:
            is_left_out = is_padding(padding, self.values[index])
            if is_left_out is not None:
                self._feature_rows(index)[is_left_out] = _LEFT_OUT

    def apply_unknown_rules(self) -> list[int]:
        """Replaces each unknown id by the row of its rule; returns how many each feature has.

        Raises:
          UnknownRejected: A feature has unknown ids and rejects them.
        """
        (unknown,) = (self.rows == _UNKNOWN).nonzero()
        if not unknown.size:
            return [0] * len(self.values)
        # The feature of each unknown id, by its position in the array of all rows.
        features = np.searchsorted(self._ends, unknown, side="right") - 1
        counts: list[int] = np.bincount(features, minlength=len(self.values)).tolist()
        for index in self._joint.rejecting:
            if counts[index]:
                is_unknown = self._feature_rows(index) == _UNKNOWN
                rejected = self.values[index][is_unknown]
                raise self._joint.features[index].reject(rejected[0])
        self.rows[unknown] = self._joint.unknown_rows[features]
        return counts

    def remote_rows(self) -> dict[str, Rows]:
        """Returns the distinct remote rows that are read, ascending, by layout."""
        rows_by_layout = {}
        for remote_rows, indices, always_read in self._joint.remote:
            rows = np.concatenate([self._in_source(indices), always_read])
            rows_by_layout[remote_rows.name] = distinct(rows[rows >= 0])
        return rows_by_layout

    def use_fetched(self, fetched: Fetched) -> None:
        """Reads remote rows from where they were fetched to. Lost rows follow the unknown rule of
        their feature.

        Raises:
          RowUnavailable: A feature rejects unknown ids, and one of its rows is lost.
        """
        for rows, indices, _ in self._joint.remote:
            source = fetched[rows.name]
            self._sources[indices.start : indices.stop] = [source] * len(indices)
            if source.lost is None:
                continue
            for index in indices:
                is_lost = source.is_lost(self._in_source(range(index, index + 1)))
                if not is_lost.any():
                    continue
                if index in self._joint.rejecting:
                    lost_ids = self.values[index][is_lost]
                    raise RowUnavailable(self._joint.features[index].input_name, lost_ids[0])
                self._feature_rows(index)[is_lost] = self._joint.unknown_rows[index]

    def vectors(self) -> list[NDArray[Any]]:
        """Reads and combines features of a table that are alike at once; returns [n, dim] or [n,
        length, dim] for each feature.
        """
        # TensorFlow drops ids of weights up to 0 from sparse bags before it combines them.
        for index, weights in self._weights.items():
            entry = self._joint.features[index].entry
            if entry.encoding == "sparse" and entry.combiner != "sum":
                self._feature_rows(index)[weights <= 0] = _UNKNOWN
        vectors: list[NDArray[Any]] = []
        for first, end in self._joint.runs:
            vectors.extend(self._read(range(first, end)))
        return vectors

    def _feature_rows(self, index: int) -> Rows:
        """Returns the rows of a feature, to be changed in place."""
        return self.rows[self._ends[index] : self._ends[index + 1]]

    def _in_source(self, indices: range) -> Rows:
        """Returns the rows of features that read one source, as rows of that source."""
        first = indices.start
        end = indices.stop
        rows = self.rows[self._ends[first] : self._ends[end]]
        # Without tables side by side, the rows are those of the source.
        if not self._joint.is_shifted:
            return rows
        sizes = np.diff(self._ends[first : end + 1])
        shifts = self._joint.firsts[first:end].repeat(sizes)
        return np.where(rows < 0, rows, rows + shifts)

    def _read(self, indices: range) -> NDArray[Any]:
        """Returns [features, n, dim] of features that are alike, [features, n, length, dim] of
        sequences.
        """
        feature = self._joint.features[indices[0]]
        source: RowReader = self._sources[indices[0]]
        rows = self._in_source(indices)
        if feature.entry.kind == "single":
            vectors = source.take(rows)
        elif feature.entry.kind == "bag":
            vectors = self._read_bags(source, rows, indices)
        else:
            vectors = self._read_sequences(source, rows, indices)
        return vectors.reshape(len(indices), self._n, *vectors.shape[1:])

    def _read_bags(self, source: RowReader, rows: Rows, indices: range) -> NDArray[Any]:
        """Returns [features * n, dim] vectors of bags that are alike."""
        feature = self._joint.features[indices[0]]
        entry = feature.entry
        offsets = self._joined_offsets(indices)
        weights = None
        if self._weights:
            weights = self._joined_weights(indices)
        if entry.empty_row is not None:
            empty_rows = self._rows_without_ids(indices, "empty_row")
            rows, offsets, weights = with_empty_row(rows, offsets, weights, empty_rows)
        if entry.max_norm is None:
            return source.bags(rows, offsets, feature.combiner, weights)
        return combine_clipped(
            source.take, entry.max_norm, rows, offsets, feature.combiner, weights
        )

    def _read_sequences(self, source: RowReader, rows: Rows, indices: range) -> NDArray[Any]:
        """Returns [features * n, length, dim] vectors of sequences that are alike."""
        feature = self._joint.features[indices[0]]
        entry = feature.entry
        offsets = self._joined_offsets(indices)
        lengths = lengths_of(offsets)
        length_max = entry.length or 0
        shape = (lengths.size, length_max, feature.table.dim)
        vectors = np.zeros(shape, np.float32)
        if entry.filler_row is not None:
            filler_rows = self._rows_without_ids(indices, "filler_row")
            vectors[...] = source.take(filler_rows)[:, np.newaxis]
        # Each row goes to its example and its position there; what is not written stays padding.
        examples = np.arange(lengths.size).repeat(lengths)
        steps = np.arange(examples.size) - offsets[examples]
        vectors[examples, steps] = source.take(rows)
        return vectors

    def _joined_offsets(self, indices: range) -> Offsets:
        """Returns the offsets of features, end to end."""
        if len(indices) == 1:
            return self.offsets[indices[0]]
        lengths = [lengths_of(self.offsets[index]) for index in indices]
        return offsets_of(np.concatenate(lengths))

    def _joined_weights(self, indices: range) -> NDArray[np.float32] | None:
        """Returns the weights of features end to end, 1 for those without; None if all are 1."""
        if self._weights.keys().isdisjoint(indices):
            return None
        all_weights = list[NDArray[np.float32]]()
        for index in indices:
            weights = self._weights.get(index)
            if weights is None:
                weights = np.ones(self.values[index].size, np.float32)
            all_weights.append(weights)
        return np.concatenate(all_weights)

    def _rows_without_ids(self, indices: range, field: Literal["empty_row", "filler_row"]) -> Rows:
        """Returns the row that each bag or sequence of features reads where it has no ids."""
        entries = [self._joint.features[index].entry for index in indices]
        rows = np.array([getattr(entry, field) for entry in entries])
        firsts = self._joint.firsts[indices.start : indices.stop]
        return (rows + firsts).repeat(self._n)


def _source(table: TableReader | RemoteTable | Indicator) -> RowSource:
    """Returns the source of a table that lies beside no others."""
    if isinstance(table, RemoteTable):
        return RowSource(table.among, table.first)
    return RowSource(table)


def _cut(values: Values, offsets: Offsets, length: int) -> tuple[Values, Offsets]:
    """Cuts sequences at their end to a length."""
    lengths = lengths_of(offsets)
    if int(lengths.max(initial=0)) <= length:
        return values, offsets
    # The position of each value in its sequence.
    steps = np.arange(values.size) - offsets[:-1].repeat(lengths)
    cut_lengths = np.minimum(lengths, length)
    return values[steps < length], offsets_of(cut_lengths)
