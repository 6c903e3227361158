"""What the reference model is called with: the examples, as they were when it was trained.

The model's own id rules get what callers send; where the recipe has the rule from id to row, the
model was trained on rows, and gets those. Where rows are found by key, the keys are what it was
trained on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.features.columns import Column
from bundle.features.input_lengths import fitted_default
from bundle.features.reader import FeatureReader
from bundle.format.manifest import InputLength
from bundle.tables.id_values import integers
from export.errors import UsageError, VerificationFailed
from export.front_end.interface import ReadRows, ReferenceInputs, ReferenceModel
from export.front_end.manifest_features import describe_ids
from export.front_end.specs import FeatureSpec, ModelSpec
from export.id_rules.operations import rows_by_tensorflow
from export.recipe.schema import ExportJob, FeaturePart
from export.tables.dumped import KeyFile, open_dumps
from export.verify.examples import Examples

Rows = NDArray[np.int64]


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

    @cached_property
    def dumped(self) -> dict[str, KeyFile]:
        """Keys of each table whose rows are found by key."""
        return {name: KeyFile(table) for name, table in open_dumps(self.job, self.base).items()}

    @cached_property
    def inputs(self) -> ReferenceInputs:
        """The examples as the model takes them."""
        names = {name for tower in self.model.towers.values() for name in tower.call_inputs}
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
        readers = self.model.inputs[name]
        embedded = [
            spec
            for spec in readers
            if isinstance(spec, FeatureSpec) and spec.rule is None and spec.entry.place is None
        ]
        stated = self.job.features.get(name, FeaturePart()).ids.kind != "identity"
        if embedded and (stated or embedded[0].entry.cast is None):
            rows = self._rows(name, embedded[0])
            if stated or len(readers) == 1:
                return rows
        length = self.features.length_of(name)
        return self.examples.columns.get(name) or default_column(
            name, self.job, self.examples.n, length
        )

    def _rows(self, name: str, spec: FeatureSpec) -> Column:
        """Returns the rows that the bundle finds for ids, which the recipe's rule must give in
        TensorFlow, too.
        """
        part = self.job.features.get(name, FeaturePart())
        column = self.examples.columns.get(name)
        rows, offsets = self.features.rows(spec.name, self.examples.columns, self.examples.n)
        if column is not None and column.values.size == rows.size:  # else defaults stand among them
            self._check_rows(name, spec, column.values, rows)
        weights = None
        if spec.weights is not None:
            sent = column.weights if column is not None else None
            weights = np.ones(rows.size, np.float32) if sent is None else sent.astype(np.float32)
        unknown = spec.unknown or part.unknown
        if unknown.rule == "row":
            rows = np.where(rows < 0, np.int64(unknown.row or 0), rows)
        if spec.entry.kind == "bag" and (rows < 0).any():  # a bag leaves unknown ids out
            kept = rows >= 0
            offsets = np.concatenate([[0], np.cumsum(kept)])[offsets]
            rows = rows[kept]
            weights = None if weights is None else weights[kept]
        if spec.entry.table in self.dumped:
            rows = self._keys(name, rows, self.dumped[spec.entry.table])
        return Column(rows, offsets, weights)

    def _check_rows(self, name: str, spec: FeatureSpec, values: NDArray[Any], found: Rows) -> None:
        """Compares the rows of ids with those in the dump, or with what TensorFlow makes of them by
        the recipe's rule.

        Raises:
          VerificationFailed: they differ; names an id and both rows.
        """
        part = self.job.features.get(name, FeaturePart())
        if spec.entry.table in self.dumped:
            right = self.dumped[spec.entry.table].rows(integers(name, values))
            source = "of the dump"
        else:
            rows = self.model.rows_of(spec)
            rule = describe_ids(spec, part, rows, self.job)
            source = f"by the recipe's rule ({part.ids.kind}) in TensorFlow"
            right = rows_by_tensorflow(rule, values, self.job.vocabularies, self.base)
            right = np.where((right < 0) | (right >= rows), -1, right)
        if not np.array_equal(found, right):
            place = int(np.argmax(found != right))
            raise VerificationFailed(
                f"feature {name!r}: id {values.tolist()[place]!r} is row {found[place]} in the "
                "bundle and row "
                f"{right[place]} {source}; {int((found != right).sum())} of {found.size} differ"
            )

    def _keys(self, name: str, rows: Rows, file: KeyFile) -> Rows:
        """Returns the keys of rows, -1 where there is none."""
        held, place = np.unique(rows, return_inverse=True)
        keys = np.concatenate([np.full(np.count_nonzero(held < 0), -1), file.of(held[held >= 0])])
        if self.job.inputs[name].dtype == "int32" and keys.max(initial=0) > np.iinfo(np.int32).max:
            raise UsageError(
                f"inputs.{name}.dtype is int32, which key {keys.max()} of its table does not fit; "
                "say int64"
            )
        return keys[place]


def default_column(name: str, job: ExportJob, n: int, length: InputLength | None = None) -> Column:
    """Returns what the recipe has stand for an input that n examples leave out.

    Args:
      name: the input.
      job: the recipe.
      n: number of examples.
      length: how many values the input takes; None: any number of them.
    """
    default = fitted_default(name, length, job.features.get(name, FeaturePart()).default)
    weights = None
    if isinstance(default, dict):
        weights = np.tile(np.asarray(default["weights"], np.float32), n)
        default = default["ids"]
    one = np.asarray(default).reshape(-1)
    return Column(np.tile(one.astype(object) if one.dtype.kind == "U" else one, n), None, weights)
