"""What the reference model is called with: the examples, as they were when it was trained.

The model's own id rules get what callers send; where the recipe tells the rule from id to row, the model was trained on
rows, and gets those. Where rows are found by key, the keys are what it was trained on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.features.columns import Column, checked_offsets
from bundle.features.reader import FeatureReader
from bundle.tables.id_values import integers
from export.errors import UsageError, VerificationFailed
from export.frameworks.loading import load_tensorflow
from export.graph.specs import FeatureSpec, ModelSpec
from export.recipe.schema import ExportJob, FeaturePart, InputPart
from export.tables.dumped import KeyFile, open_dumps
from export.verify.examples import Examples
from export.verify.id_rules import check_rows

Rows = NDArray[np.int64]


def _check_keyed(name: str, ids: NDArray[np.int64], found: Rows, file: KeyFile) -> None:
    right = file.rows(ids)
    if not np.array_equal(found, right):
        place = int(np.argmax(found != right))
        raise VerificationFailed(
            f"feature {name!r}: key {ids[place]} is row {found[place]} in the bundle and row {right[place]} of the "
            "dump; nothing is published"
        )


@dataclass(frozen=True)
class _Values:
    """Values of one input for all examples, with the offsets of each example and the weights beside them."""

    values: NDArray[Any]
    offsets: NDArray[np.int64]
    weights: NDArray[np.float32] | None


@dataclass(frozen=True)
class ReferenceInputs:
    """The inputs of the reference model's calls.

    Attributes:
      job, base: the recipe and its folder.
      model: what was traced.
      examples: as callers send them.
      features: the bundle's reader of them.
    """

    job: ExportJob
    base: Path
    model: ModelSpec
    examples: Examples
    features: FeatureReader

    @cached_property
    def dumped(self) -> dict[str, KeyFile]:
        """Keys of each table whose rows are found by key."""
        return {name: KeyFile(table) for name, table in open_dumps(self.job, self.base).items()}

    def touched(self, table: str) -> Rows:
        """Returns the rows of a table that the examples read, ascending; their keys where they are found by key."""
        read = []
        for spec in self.model.features.values():
            if isinstance(spec, FeatureSpec) and spec.table == table:
                rows, _ = self.features.rows(spec.name, self.examples.columns, self.examples.n)
                read.append(rows)
                unknown = spec.unknown or self.job.features.get(spec.reads[0], FeaturePart()).unknown
                read.append(np.array([unknown.row or 0, spec.empty_row or 0], np.int64))
        touched = np.unique(np.concatenate(read))
        touched = touched[touched >= 0]
        return np.sort(self.dumped[table].of(touched)) if table in self.dumped else touched

    def value(self, name: str) -> Any:
        """Returns one input as the model takes it; one that no tower needs is given zeros, or nothing."""
        tf = load_tensorflow()
        part, n = self.job.inputs[name], self.examples.n
        dtype = tf.as_dtype(part.dtype)
        found = self._held.get(part.weights_for or name)
        if found is None:
            empty = np.zeros(n * int(np.prod(part.shape)) if part.kind == "dense" else 0)
            found = _Values(empty, np.zeros(n + 1, np.int64), None)
        values = found.values
        if part.weights_for is not None:
            values = np.ones(values.size, np.float32) if found.weights is None else found.weights
        if dtype == tf.string and values.dtype != object:
            values = np.full(values.shape, "", object) if name not in self._held else values.astype(str).astype(object)
        if part.kind == "ragged":
            return tf.RaggedTensor.from_row_splits(tf.constant(values, dtype), found.offsets)
        if part.kind == "sparse":
            example = np.repeat(np.arange(n), np.diff(found.offsets))
            place = np.arange(values.size) - found.offsets[example]
            longest = int(np.diff(found.offsets).max(initial=1))
            indices = np.stack([example, place], axis=1).astype(np.int64)
            return tf.SparseTensor(indices, tf.constant(values, dtype), [n, longest])
        return tf.reshape(tf.constant(self._filled(name, values, found.offsets, part), dtype), [n, *part.shape])

    @cached_property
    def _held(self) -> dict[str, _Values]:
        return {name: self._values(name) for name in self.model.inputs}

    def _values(self, name: str) -> _Values:
        readers = self.model.inputs[name]
        embedded = [
            spec for spec in readers if isinstance(spec, FeatureSpec) and spec.rule is None and spec.place is None
        ]
        stated = self.job.features.get(name, FeaturePart()).ids.kind != "identity"
        if embedded and (stated or embedded[0].cast is None):
            rows = self._rows(name, embedded[0])
            if stated or len(readers) == 1:
                return rows
        column = self.examples.columns.get(name)
        if column is None:
            column = self._default(name)
        weights = None if column.weights is None else column.weights.astype(np.float32)
        return _Values(column.values, checked_offsets(name, column, self.examples.n), weights)

    def _default(self, name: str) -> Column:
        default = self.job.features.get(name, FeaturePart()).default
        weights = None
        if isinstance(default, dict):
            default, weights = default["ids"], np.asarray(default["weights"], np.float32)
        one = np.asarray(default, object) if isinstance(default, str) else np.asarray(default)
        one = one.reshape(-1)
        one = one.astype(object) if one.dtype.kind == "U" else one
        n = self.examples.n
        return Column(
            np.tile(one, n),
            np.arange(n + 1, dtype=np.int64) * one.size,
            None if weights is None else np.tile(weights, n),
        )

    def _rows(self, name: str, spec: FeatureSpec) -> _Values:
        """Returns the rows that the bundle finds for ids, which the recipe's rule must give in TensorFlow, too."""
        part = self.job.features.get(name, FeaturePart())
        column = self.examples.columns.get(name)
        rows, offsets = self.features.rows(spec.name, self.examples.columns, self.examples.n)
        if column is not None and column.values.size == rows.size:  # else defaults stand among them
            if spec.table in self.dumped:
                ids = integers(name, column.values)
                _check_keyed(name, ids, rows, self.dumped[spec.table])
            else:
                check_rows(name, column.values, rows, part, self.model.rows_of(spec), self.job.vocabularies, self.base)
        weights = None
        if spec.weights is not None:
            sent = column.weights if column is not None else None
            weights = np.ones(rows.size, np.float32) if sent is None else sent.astype(np.float32)
        unknown = spec.unknown or part.unknown
        if unknown.rule == "row":
            rows = np.where(rows < 0, np.int64(unknown.row or 0), rows)
        if spec.kind == "bag" and (rows < 0).any():  # a bag leaves unknown ids out
            kept = rows >= 0
            offsets = np.concatenate([[0], np.cumsum(kept)])[offsets]
            rows, weights = rows[kept], None if weights is None else weights[kept]
        if spec.table in self.dumped:
            rows = self._keys(name, rows, self.dumped[spec.table])
        return _Values(rows, offsets, weights)

    def _keys(self, name: str, rows: Rows, file: KeyFile) -> Rows:
        """Returns the keys of rows, -1 where there is none."""
        held, place = np.unique(rows, return_inverse=True)
        keys = np.concatenate([np.full(np.count_nonzero(held < 0), -1), file.of(held[held >= 0])])
        if self.job.inputs[name].dtype == "int32" and keys.max(initial=0) > np.iinfo(np.int32).max:
            raise UsageError(
                f"inputs.{name}.dtype is int32, which key {keys.max()} of its table does not fit; say int64"
            )
        return keys[place]

    def _filled(self, name: str, values: NDArray[Any], offsets: NDArray[np.int64], part: InputPart) -> NDArray[Any]:
        """Returns the values of a dense input, with what fills it up behind those of an example that has fewer."""
        size, n = int(np.prod(part.shape)), self.examples.n
        if values.size == n * size:
            return values
        readers = [spec for spec in self.model.inputs.get(name, ()) if isinstance(spec, FeatureSpec)]
        paddings = [spec.padding_of(name) for spec in readers]
        padding = next((each for each in paddings if each is not None), 0)
        filled = np.full((n, size), padding, object if values.dtype == object else values.dtype)
        lengths = np.diff(offsets)
        example = np.repeat(np.arange(n), lengths)
        place = np.arange(values.size) - offsets[example]
        kept = place < size
        filled[example[kept], place[kept]] = values[kept]
        return filled
