"""The original model, uncut, restored from the checkpoint by TensorFlow, as far as examples need it.

A table may be larger than memory, so each table's variable holds only the rows that the examples read; ids are replaced
by positions among them on their way into TensorFlow's own lookup, which combines as it always does. Nothing else can
read a table: the cut refuses a model that does (`export/pruning.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.features import FeatureReader
from bundle.manifest import TableSource
from export.calling import resolve_call
from export.checkpoint.layouts import stored_rows
from export.checkpoint.reader import Checkpoint
from export.checkpoint.stretches import read_stretches
from export.cuts.embedding_layers import intercepted, original_lookup
from export.cuts.lookups import Lookup
from export.errors import NotConvertible
from export.examples import Examples
from export.frameworks import load_tensorflow
from export.id_rules import check_rows
from export.model_code import load_factory
from export.settings import ExportJob, FeaturePart, InputPart
from export.table_sources import layout_of
from export.towers import FeatureSpec, ModelSpec, TableFacts
from export.weights import path_steps

Rows = NDArray[np.int64]
ReadRows = Callable[[str, Rows], NDArray[Any]]
"""(name of a table, [m] ascending rows) -> [m, columns] values of the checkpoint; the first columns are the table's."""
Results = dict[str, dict[str, NDArray[Any]]]
"""Tower -> output -> [n, ...] float32."""

_NONE = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Replay:
    """What is replayed.

    Attributes:
      job, base: the recipe and its folder.
      model: what was traced.
      prefix: the checkpoint.
      examples: as callers send them.
      features: the bundle's reader of them.
      converted: tables whose rows in the bundle are not the checkpoint's own.
    """

    job: ExportJob
    base: Path
    model: ModelSpec
    prefix: Path
    examples: Examples
    features: FeatureReader
    converted: frozenset[str] = frozenset()

    def converted_tables(self, tower: str) -> list[str]:
        """Returns the converted tables that a tower reads."""
        return sorted(self.converted & set(self.model.of(tower).tables))


@dataclass(frozen=True)
class _Resolved:
    """Rows of one feature as the model takes them (-1: unknown, kept as zeros), with offsets and weights."""

    rows: Rows
    offsets: NDArray[np.int64]
    weights: NDArray[np.float32] | None


def checkpoint_rows(checkpoint: Checkpoint, sources: Mapping[str, TableSource]) -> ReadRows:
    """Returns a reader of tables as a checkpoint stores them."""

    def read(table: str, rows: Rows) -> NDArray[Any]:
        if table not in sources:
            raise NotConvertible(f"table {table!r} is not known in checkpoint {checkpoint.prefix}")
        key = sources[table].key
        stored = stored_rows(layout_of(sources[table]), rows)
        order = np.argsort(stored)
        ordered = stored[order]
        values = np.empty((rows.size, *checkpoint.entries[key].shape[1:]), np.float32)
        breaks = np.flatnonzero(np.diff(ordered) != 1) + 1
        cuts = [(int(first), int(last)) for first, last in pairwise([0, *breaks, rows.size]) if last > first]
        stretches = [(int(ordered[first]), last - first) for first, last in cuts]
        for (first, last), found in zip(cuts, read_stretches(checkpoint, key, stretches), strict=True):
            values[order[first:last]] = found
        return values

    return read


def replay_original(replay: Replay, read_rows: ReadRows) -> Results:
    """Runs the original model on examples, on a CPU.

    Args:
      replay: the model, the checkpoint and the examples.
      read_rows: reads rows of the checkpoint's tables.
    Returns:
      Each output of each tower.
    Raises:
      NotConvertible: the model code raises.
      FeatureError: an example does not fit its feature.
      VerificationFailed: the bundle finds other rows for their ids than TensorFlow does.
    """
    tf = load_tensorflow()
    model, job = replay.model, replay.job
    resolved = {name: _resolve(spec, replay) for name, spec in model.features.items() if isinstance(spec, FeatureSpec)}
    tables = _Tables(model, resolved, read_rows)
    original = original_lookup()  # before it is replaced

    def answer(lookup: Lookup) -> Any:
        ids = tables.positions(lookup)
        return original(ids, lookup.weights, {lookup.config.table: lookup.variable}, lookup.config)

    returned: dict[tuple[str, tuple[str, ...]], Any] = {}
    factory = load_factory(job.code.factory, replay.base)
    with intercepted(tables.make, answer, tracked=False), tf.device("/CPU:0"):
        root = factory()
        _restore(root, replay.prefix, job.checkpoint.object_path)
        for tower in model.towers.values():
            call = (tower.call, tower.call_inputs)
            if call not in returned:
                inputs = {name: _input(name, job.inputs[name], replay, resolved) for name in tower.call_inputs}
                returned[call] = resolve_call(root, tower.call)(inputs)
    results: Results = {}
    for name, tower in model.towers.items():
        whole = returned[(tower.call, tower.call_inputs)]
        results[name] = {
            output: tf.cast(whole if key is None else whole[key], tf.float32).numpy()
            for output, key in tower.keys.items()
        }
    return results


class _Tables:
    """Small tables: the touched rows in ascending order, then one of zeros, which stands for every other id."""

    def __init__(self, model: ModelSpec, resolved: Mapping[str, _Resolved], read_rows: ReadRows) -> None:
        self._rows: dict[str, Rows] = {}
        self._values: dict[str, NDArray[np.float32]] = {}
        for name, table in model.tables.items():
            read = [
                found.rows
                for feature, found in resolved.items()
                if isinstance(spec := model.features[feature], FeatureSpec) and spec.table == name
            ]
            touched = np.unique(np.concatenate(read)) if read else np.empty(0, np.int64)
            touched = touched[touched >= 0]
            self._rows[name] = touched
            values = np.asarray(read_rows(name, touched), np.float32)[:, : table.dim]
            self._values[name] = np.concatenate([values, np.zeros((1, table.dim), np.float32)])
        self._made: set[int] = set()

    def make(self, table: TableFacts) -> Any:
        tf = load_tensorflow()
        values = self._values.get(table.name, np.zeros((1, table.dim), np.float32))
        variable = tf.Variable(values, name=table.config_name)
        self._made.add(id(variable))
        return variable

    def positions(self, lookup: Lookup) -> Any:
        """Returns the ids of a lookup as positions in its small table."""
        tf = load_tensorflow()
        (looked_up,) = lookup.ids
        if id(lookup.variable) not in self._made:
            return looked_up  # a table of the user's own, restored whole
        held = np.append(self._rows.get(lookup.table.name, np.empty(0, np.int64)), _NONE)

        def position(ids: Any) -> Any:
            wanted = tf.cast(ids, tf.int64)
            place = tf.reshape(tf.searchsorted(held, tf.reshape(wanted, [-1]), out_type=tf.int64), tf.shape(wanted))
            return tf.where(tf.gather(held, place) == wanted, place, tf.constant(held.size - 1, tf.int64))

        if isinstance(looked_up, tf.RaggedTensor):
            return looked_up.with_values(position(looked_up.values))
        if isinstance(looked_up, tf.SparseTensor):
            return tf.SparseTensor(looked_up.indices, position(looked_up.values), looked_up.dense_shape)
        return position(looked_up)


def _resolve(spec: FeatureSpec, replay: Replay) -> _Resolved:
    (read,) = spec.reads
    part = replay.job.features.get(read, FeaturePart())
    column = replay.examples.columns.get(read)
    rows, offsets = replay.features.rows(spec.name, replay.examples.columns, replay.examples.n)
    if column is not None and column.values.size == rows.size:  # else defaults stand among them
        table = replay.model.tables[spec.table]
        check_rows(read, column.values, rows, part, table.rows, replay.job.vocabularies, replay.base)
    weights = None
    if spec.weights is not None:
        sent = column.weights if column is not None else None
        weights = np.ones(rows.size, np.float32) if sent is None else sent.astype(np.float32)
    if part.unknown.rule == "row":
        rows = np.where(rows < 0, np.int64(part.unknown.row or 0), rows)
    if spec.kind == "bag" and (rows < 0).any():  # a bag leaves unknown ids out
        kept = rows >= 0
        offsets = np.concatenate([[0], np.cumsum(kept)])[offsets]
        rows, weights = rows[kept], None if weights is None else weights[kept]
    return _Resolved(rows, offsets, weights)


def _input(name: str, part: InputPart, replay: Replay, resolved: Mapping[str, _Resolved]) -> Any:
    """Returns one input of the original call; one that no tower needs is given zeros, or nothing."""
    tf = load_tensorflow()
    dtype, n = tf.as_dtype(part.dtype), replay.examples.n
    values: NDArray[Any] = np.zeros((n, *part.shape))
    offsets = np.zeros(n + 1, np.int64)
    owner = part.weights_for or name
    if owner in resolved:
        found = resolved[owner]
        offsets, values = found.offsets, found.rows
        if part.weights_for is not None:
            values = np.ones(found.rows.size, np.float32) if found.weights is None else found.weights
    elif name in replay.model.features:
        values = replay.features.activation(name, replay.examples.columns, n).values
    elif part.kind != "dense":
        values = np.empty(0)
    if dtype == tf.string:
        values = np.full(values.shape, "", object)
    if part.kind == "ragged":
        return tf.RaggedTensor.from_row_splits(tf.constant(values, dtype), offsets)
    if part.kind == "sparse":
        example = np.repeat(np.arange(n), np.diff(offsets))
        place = np.arange(values.size) - offsets[example]
        longest = int(np.diff(offsets).max(initial=1))
        indices = np.stack([example, place], axis=1).astype(np.int64)
        return tf.SparseTensor(indices, tf.constant(values, dtype), [n, longest])
    return tf.reshape(tf.constant(values, dtype), [n, *part.shape])


def _restore(root: Any, prefix: Path, object_path: str) -> None:
    """Restores the model by TensorFlow itself; the small tables are no part of its object graph."""
    tf = load_tensorflow()
    steps = path_steps(object_path)
    if not steps:
        tf.train.Checkpoint(root).restore(str(prefix)).expect_partial()
        return
    owner = root
    for step in reversed(steps[1:]):
        holder = tf.Module()
        setattr(holder, step, owner)
        owner = holder
    tf.train.Checkpoint(**{steps[0]: owner}).restore(str(prefix)).expect_partial()
