"""The inputs of the reference model: the examples in the form in which the model was trained.

The model gets the ids that clients send and looks them up by itself, also ids that no table has:
the rows of the bundle are compared with its results, and take no part in them. Where the recipe
has the rule from id to row, the model was trained on rows, and gets the rows that TensorFlow
computes by that rule. Where rows are found by key, the model was trained on the keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.features.columns import Column, checked_offsets
from bundle.features.input_lengths import fitted_default
from bundle.features.reader import FeatureReader
from bundle.format.manifest import IDENTITY, DenseFeature, GraphIds, InputLength
from bundle.tables.id_values import integers
from export.errors import UsageError, VerificationFailed
from export.front_end.interface import ReadRows, ReferenceInputs, ReferenceModel
from export.front_end.manifest_features import describe_ids, unknown_of
from export.front_end.specs import FeatureSpec, ModelSpec
from export.id_graphs.tensorflow_operations import rows_by_tensorflow
from export.recipe.schema import ExportJob, FeatureSection
from export.tables.dumped import KeyFile, open_dumps
from export.verify.examples import Examples

Rows = NDArray[np.int64]

_INT32 = np.iinfo(np.int32)


@dataclass(frozen=True)
class Reference:
    """The original model, where its weights are, and the examples that it is called with.

    Attributes:
      job: The recipe.
      base: The recipe's folder.
      model: The traced model.
      original: The model as it was trained.
      read_rows: Reads rows of the checkpoint's tables.
      examples: The examples, as clients send them.
      features: The bundle's reader of features.
      converted: Tables whose rows in the bundle are not the checkpoint's own.
    """

    job: ExportJob
    base: Path
    model: ModelSpec
    original: ReferenceModel
    read_rows: ReadRows
    examples: Examples
    features: FeatureReader
    converted: frozenset[str] = frozenset()

    def converted_tables(self, tower: str) -> list[str]:
        """Returns the converted tables that a tower reads."""
        return sorted(self.converted & set(self.model.of(tower).tables))

    def has_unknown_ids(self, name: str) -> NDArray[np.bool_]:
        """Returns [n] which examples hold an id of an input that the bundle finds in no table."""
        examples = self.examples
        has_unknown = np.zeros(examples.n, bool)
        for spec in self.model.inputs[name]:
            if not isinstance(spec, FeatureSpec):
                continue
            rows, offsets = self.features.rows(spec.name, examples.columns, examples.n)
            example_of_row = np.repeat(np.arange(examples.n), np.diff(offsets))
            has_unknown[example_of_row[rows < 0]] = True
        return has_unknown

    @cached_property
    def dumped(self) -> dict[str, KeyFile]:
        """Keys of each table whose rows are found by key."""
        return {name: KeyFile(table) for name, table in open_dumps(self.job, self.base).items()}

    @cached_property
    def inputs(self) -> ReferenceInputs:
        """The examples as the model takes them."""
        names = {name for tower in self.model.towers.values() for name in tower.call.inputs}
        padding = {}
        for name in names:
            value = self.model.padding_of(name)
            if value is not None:
                padding[name] = value
        return ReferenceInputs(
            self.examples.n,
            {name: self._column(name) for name in sorted(names)},
            padding,
            self.read_rows,
            frozenset(self.dumped),
        )

    def _column(self, name: str) -> Column:
        """Returns one input as the model takes it; one that no tower needs is zeros, or empty."""
        section = self.job.inputs[name]
        # A call takes all inputs of the recipe, whether or not they have an effect.
        size = 0
        if section.kind == "dense":
            size = self.examples.n * math.prod(section.shape)
        unused = Column(np.zeros(size, np.float32))
        column = self._columns.get(section.weights_for or name, unused)
        if section.weights_for is None:
            return column

        # Weights are an input of their own to the model, and part of a column to a bundle.
        weights: NDArray[Any] | None = column.weights
        if weights is None:
            weights = np.ones(column.values.size)
        return column._replace(values=weights)

    @cached_property
    def _columns(self) -> dict[str, Column]:
        return {name: self._values(name) for name in self.model.inputs}

    def _values(self, name: str) -> Column:
        """Returns the values of an input that the model itself gets.

        The model looks ids up by itself, whether or not its tables have rows for them. Only what
        the recipe states is applied before: a rule, and the treatment of unknown ids.
        """
        column = self.examples.columns.get(name)
        is_sent = column is not None
        if column is None:
            length = self.features.length_of(name)
            column = default_column(name, self.job, self.examples.n, length)
        embedded = [
            spec
            for spec in self.model.inputs[name]
            if isinstance(spec, FeatureSpec) and spec.rule is None and spec.entry.place is None
        ]
        if not embedded:
            self._check_inside(name, column)
            return column
        spec = embedded[0]
        if spec.weights is not None and column.weights is None:
            column = column._replace(weights=np.ones(column.values.size, np.float32))
        if self._section(name).ids.kind != "identity":
            rows = self._rows_by_rule(name, spec, column, compared=is_sent)
            is_unknown = rows < 0
            if spec.entry.table not in self.dumped:
                # One past the end is no row to any model; some count -1 from the end.
                rows = np.where(is_unknown, self.model.rows_of(spec), rows)
            return self._by_unknown_rule(name, column, rows, is_unknown)
        if spec.unknown is not None or spec.entry.ids != IDENTITY:
            # The model itself computes rows of all ids.
            return column

        ids = self._fitting(name, integers(name, column.values))
        # An id is unknown if none of the input's tables has a row for it.
        count = max(self.model.rows_of(reader) for reader in embedded)
        first = 0
        if all(reader.outside.from_end for reader in embedded):
            first = -count
        is_unknown = (ids < first) | (ids >= count)
        padding = spec.padding_of(name)
        if padding is not None:
            is_unknown &= ids != padding
        return self._by_unknown_rule(name, column, ids, is_unknown)

    def _check_inside(self, name: str, column: Column) -> None:
        """Checks that ids have rows in the tables inside the towers, if these reject unknown ids.

        Raises:
          UsageError: An id has no row; names it.
        """
        for spec in self.model.inputs[name]:
            entry = spec.entry
            if not isinstance(entry, DenseFeature) or entry.below is None:
                continue
            ids = integers(name, column.values)
            first = -entry.below if entry.from_end else 0
            is_unknown = (ids < first) | (ids >= entry.below)
            if entry.outside == "refuse" and is_unknown.any():
                raise UsageError(_rejected(name, ids[is_unknown][0], "its table"))

    def _section(self, name: str) -> FeatureSection:
        return self.job.features.get(name, FeatureSection())

    def _fitting(self, name: str, ids: Rows) -> Rows:
        """Returns ids that the dtype of an input can hold."""
        if self.job.inputs[name].sent_dtype != "int32":
            return ids
        # An id beyond the type is no row in any case, and neither are the ends of the type.
        return ids.clip(_INT32.min, _INT32.max)

    def _by_unknown_rule(
        self, name: str, column: Column, ids: Rows, is_unknown: NDArray[np.bool_]
    ) -> Column:
        """Returns a column for the model, in which unknown ids are treated as the recipe states.

        Args:
          name: The input.
          column: The column that clients send.
          ids: [m] the model's id for each value of the column.
          is_unknown: [m] whether no table has the id.

        Raises:
          UsageError: An example holds an unknown id, which the feature rejects.
        """
        readers = self.model.inputs[name]
        spec = next(
            reader for reader in readers if isinstance(reader, FeatureSpec) and not reader.rule
        )
        column = column._replace(values=ids)
        if not is_unknown.any():
            return column

        unknown = unknown_of(spec, self._section(name))
        if unknown.rule == "refuse" and spec.outside.outcome != "nearest":
            # The message names the id in the file, not the model's.
            sent_ids = ids
            if name in self.examples.columns:
                sent_ids = self.examples.columns[name].values
            rejected = sent_ids.tolist()[int(is_unknown.argmax())]
            raise UsageError(_rejected(name, rejected, f"table {spec.entry.table!r}"))
        if unknown.rule == "row":
            row = np.int64(unknown.row or 0)
            if spec.entry.table in self.dumped:
                (row,) = self.dumped[spec.entry.table].of(np.array([row]))
            return column._replace(values=np.where(is_unknown, row, ids))

        # A bag leaves unknown ids out. A dense input has a position for every id, which only
        # padding can fill.
        are_bags = all(
            isinstance(reader, FeatureSpec) and reader.entry.kind == "bag" for reader in readers
        )
        can_shrink = self.job.inputs[name].kind != "dense" or spec.padding_of(name) is not None
        if unknown.rule == "zeros" and are_bags and can_shrink:
            return self._without_unknown(name, column, ~is_unknown)
        return column

    def _without_unknown(self, name: str, column: Column, is_known: NDArray[np.bool_]) -> Column:
        """Returns a column with its known ids alone."""
        offsets = checked_offsets(name, column, self.examples.n)
        known_before = np.concatenate([[0], np.cumsum(is_known)])
        weights = None
        if column.weights is not None:
            weights = column.weights[is_known]
        return Column(column.values[is_known], known_before[offsets], weights)

    def _rows_by_rule(self, name: str, spec: FeatureSpec, column: Column, compared: bool) -> Rows:
        """Returns [m] the ids that training had: the rows that TensorFlow computes by the recipe's
        rule, or the keys of a dumped table; -1 for unknown ids.

        Args:
          name: The input.
          spec: The feature that reads the input.
          column: The column that clients send, or the default.
          compared: Whether the bundle must find the same rows.

        Raises:
          VerificationFailed: The bundle finds other rows; names an id and both rows.
        """
        values = column.values
        dump = self.dumped.get(spec.entry.table)
        section = self._section(name)
        if dump is not None:
            rows = dump.rows(integers(name, values))
            source = "of the dump"
        else:
            count = self.model.rows_of(spec)
            rule = describe_ids(spec, section, count, self.job)
            source = f"by the recipe's rule ({section.ids.kind}) in TensorFlow"
            assert isinstance(rule, GraphIds)  # noqa: S101 - no dump
            rows = rows_by_tensorflow(rule, values, self.job.vocabularies, self.base)
            rows = np.where((rows < 0) | (rows >= count), -1, rows)
        if compared:
            self._check_rows(name, spec, values, rows, source)
        if dump is None:
            return rows
        keys = np.where(rows < 0, -1, integers(name, values))
        self._check_keys(name, keys)
        return keys

    def _check_rows(
        self, name: str, spec: FeatureSpec, values: NDArray[Any], expected: Rows, source: str
    ) -> None:
        """Compares the rows that the bundle finds for ids with the rows of another source.

        Raises:
          VerificationFailed: They differ; names an id and both rows.
        """
        rows, _ = self.features.rows(spec.name, self.examples.columns, self.examples.n)
        if not np.array_equal(rows, expected):
            differs = rows != expected
            first = int(np.argmax(differs))
            raise VerificationFailed(
                f"feature {name!r}: id {values.tolist()[first]!r} is row {rows[first]} in the "
                f"bundle and row {expected[first]} {source}; {int(differs.sum())} of {rows.size} "
                "differ"
            )

    def _check_keys(self, name: str, keys: Rows) -> None:
        if self.job.inputs[name].sent_dtype == "int32" and keys.max(initial=0) > _INT32.max:
            raise UsageError(
                f"inputs.{name}.dtype is int32, which key {keys.max()} of its table does not fit; "
                "say int64"
            )


def _rejected(name: str, value: Any, table: str) -> str:
    return (
        f"verify.examples: id {value!s:.80} of input {name!r} is not in {table}, and the feature "
        f"rejects unknown ids; leave the example out, or state features.{name}.unknown"
    )


def default_column(name: str, job: ExportJob, n: int, length: InputLength | None = None) -> Column:
    """Returns the column of an input that n examples leave out: the recipe's default.

    Args:
      name: The input.
      job: The recipe.
      n: The number of examples.
      length: The number of values that the input takes; None: any number.
    """
    default = fitted_default(name, length, job.features.get(name, FeatureSection()).default)
    weights = None
    if isinstance(default, dict):
        weights = np.tile(np.asarray(default["weights"], np.float32), n)
        default = default["ids"]
    values = np.asarray(default).reshape(-1)
    if values.dtype.kind == "U":
        # Columns hold texts as objects.
        values = values.astype(object)
    return Column(np.tile(values, n), None, weights)
