"""What the reference model is called with: the examples, as they were when it was trained.

The model gets the ids that callers send and looks them up by itself, also those that no table has:
what a bundle finds for them is compared with that, and takes no part in it. Where the recipe has
the rule from id to row, the model was trained on rows, and gets those that TensorFlow makes by that
rule. Where rows are found by key, the keys are what it was trained on.
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
from bundle.format.manifest import DenseFeature, GraphIds, IdentityIds, InputLength
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
      job, base: the recipe and its folder.
      model: what was traced.
      original: the model as it was trained.
      read_rows: reads rows of the checkpoint's tables.
      examples: as callers send them.
      features: the bundle's reader of them.
      converted: tables whose rows in the bundle are not the checkpoint's own.
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
        found = np.zeros(examples.n, bool)
        for spec in self.model.inputs[name]:
            if not isinstance(spec, FeatureSpec):
                continue
            rows, offsets = self.features.rows(spec.name, examples.columns, examples.n)
            number = np.repeat(np.arange(examples.n), np.diff(offsets))
            found[number[rows < 0]] = True
        return found

    @cached_property
    def dumped(self) -> dict[str, KeyFile]:
        """Keys of each table whose rows are found by key."""
        return {name: KeyFile(table) for name, table in open_dumps(self.job, self.base).items()}

    @cached_property
    def inputs(self) -> ReferenceInputs:
        """The examples as the model takes them."""
        names = {name for tower in self.model.towers.values() for name in tower.call.inputs}
        padding = {name: self.model.padding_of(name) for name in names}
        return ReferenceInputs(
            self.examples.n,
            {name: self._column(name) for name in sorted(names)},
            {name: each for name, each in padding.items() if each is not None},
            self.read_rows,
            frozenset(self.dumped),
        )

    def _column(self, name: str) -> Column:
        """Returns one input as the model takes it; one that no tower needs is zeros, or nothing."""
        part = self.job.inputs[name]
        size = self.examples.n * math.prod(part.shape) if part.kind == "dense" else 0
        found = self._held.get(part.weights_for or name, Column(np.zeros(size, np.float32)))
        if part.weights_for is None:
            return found
        weights = found.weights
        return found._replace(values=np.ones(found.values.size) if weights is None else weights)

    @cached_property
    def _held(self) -> dict[str, Column]:
        return {name: self._values(name) for name in self.model.inputs}

    def _values(self, name: str) -> Column:
        """Returns the values of an input that the model itself gets.

        The model looks ids up by itself, whether or not its tables have rows for them. Only what
        the recipe states comes before: a rule, and what unknown ids become.
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
        if self.job.features.get(name, FeatureSection()).ids.kind != "identity":
            rows = self._rows_by_rule(name, spec, column, compared=is_sent)
            is_unknown = rows < 0
            if spec.entry.table not in self.dumped:
                # One past the end is no row to any model; some count -1 from the end.
                rows = np.where(is_unknown, self.model.rows_of(spec), rows)
            return self._by_unknown_rule(name, column, rows, is_unknown)
        if spec.unknown is not None or isinstance(spec.entry.ids, GraphIds):
            return column  # the model itself makes rows of all ids
        ids = self._fitting(name, integers(name, column.values))
        count = max(self.model.rows_of(each) for each in embedded)
        first = -count if all(each.outside.from_end for each in embedded) else 0
        is_unknown = (ids < first) | (ids >= count)
        padding = spec.padding_of(name)
        if padding is not None:
            is_unknown &= ids != padding
        return self._by_unknown_rule(name, column, ids, is_unknown)

    def _check_inside(self, name: str, column: Column) -> None:
        """Checks that ids have rows in the tables inside the towers, where others are rejected.

        Raises:
          UsageError: One has none; names it.
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

    def _fitting(self, name: str, ids: Rows) -> Rows:
        """Returns ids that the dtype of an input can hold; others are no rows in any case."""
        if self.job.inputs[name].sent_dtype != "int32":
            return ids
        return ids.clip(_INT32.min, _INT32.max)

    def _by_unknown_rule(
        self, name: str, column: Column, ids: Rows, is_unknown: NDArray[np.bool_]
    ) -> Column:
        """Returns a column with other ids, those that are unknown as the recipe states.

        Args:
          name: The input.
          column: What callers send.
          ids: [m] what the model gets for each of its values.
          is_unknown: [m] which of them no table has.

        Raises:
          UsageError: An example holds an unknown id, which the feature rejects.
        """
        readers = self.model.inputs[name]
        spec = next(each for each in readers if isinstance(each, FeatureSpec) and not each.rule)
        column = column._replace(values=ids)
        if not is_unknown.any():
            return column
        sent = self.examples.columns[name].values if name in self.examples.columns else ids
        unknown = unknown_of(spec, self.job.features.get(name, FeatureSection()))
        if unknown.rule == "refuse" and spec.outside.outcome != "nearest":
            rejected = sent.tolist()[int(is_unknown.argmax())]
            raise UsageError(_rejected(name, rejected, f"table {spec.entry.table!r}"))
        if unknown.rule == "row":
            row = np.int64(unknown.row or 0)
            if spec.entry.table in self.dumped:
                (row,) = self.dumped[spec.entry.table].of(np.array([row]))
            return column._replace(values=np.where(is_unknown, row, ids))
        bags = [isinstance(each, FeatureSpec) and each.entry.kind == "bag" for each in readers]
        # A dense input has a place for every id, and only padding can stand in one.
        has_place = self.job.inputs[name].kind != "dense" or spec.padding_of(name) is not None
        if unknown.rule == "zeros" and all(bags) and has_place:  # a bag leaves unknown ids out
            kept = ~is_unknown
            offsets = checked_offsets(name, column, self.examples.n)
            return Column(
                ids[kept],
                np.concatenate([[0], np.cumsum(kept)])[offsets],
                None if column.weights is None else column.weights[kept],
            )
        return column

    def _rows_by_rule(self, name: str, spec: FeatureSpec, column: Column, compared: bool) -> Rows:
        """Returns [m] the rows that the recipe's rule makes of ids in TensorFlow, or of a dumped
        table their keys, which training had; -1 for unknown ids.

        Args:
          name: The input.
          spec: The feature that reads it.
          column: What callers send, or the default.
          compared: Whether the bundle must find the same rows.

        Raises:
          VerificationFailed: It finds others; names an id and both rows.
        """
        values = column.values
        dump = self.dumped.get(spec.entry.table)
        part = self.job.features.get(name, FeatureSection())
        if dump is not None:
            rows = dump.rows(integers(name, values))
            source = "of the dump"
        else:
            count = self.model.rows_of(spec)
            rule = describe_ids(spec, part, count, self.job)
            source = f"by the recipe's rule ({part.ids.kind}) in TensorFlow"
            assert isinstance(rule, IdentityIds | GraphIds)  # noqa: S101 - no dump
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
        self, name: str, spec: FeatureSpec, values: NDArray[Any], right: Rows, source: str
    ) -> None:
        """Compares the rows that the bundle finds for ids with those of another source.

        Raises:
          VerificationFailed: They differ; names an id and both rows.
        """
        found, _ = self.features.rows(spec.name, self.examples.columns, self.examples.n)
        if not np.array_equal(found, right):
            place = int(np.argmax(found != right))
            raise VerificationFailed(
                f"feature {name!r}: id {values.tolist()[place]!r} is row {found[place]} in the "
                "bundle and row "
                f"{right[place]} {source}; {int((found != right).sum())} of {found.size} differ"
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
    """Returns what the recipe has stand for an input that n examples leave out.

    Args:
      name: the input.
      job: the recipe.
      n: number of examples.
      length: how many values the input takes; None: any number of them.
    """
    default = fitted_default(name, length, job.features.get(name, FeatureSection()).default)
    weights = None
    if isinstance(default, dict):
        weights = np.tile(np.asarray(default["weights"], np.float32), n)
        default = default["ids"]
    one = np.asarray(default).reshape(-1)
    return Column(np.tile(one.astype(object) if one.dtype.kind == "U" else one, n), None, weights)
