"""The reference model: the original, not partitioned, restored by TensorFlow as far as examples
need it.

A table may be larger than memory, so only the rows that the examples read are there
(`reference_tables.py`). Nothing else can read a table that left the towers: one that is read whole
stays inside (`model/inline_tables.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.errors import BundleError
from bundle.format.manifest import TableSource, TextIds
from export.checkpoint.reader import Checkpoint
from export.errors import (
    CheckpointError,
    ExportError,
    NotConvertible,
    UsageError,
    VerificationFailed,
)
from export.frameworks.hook_points import NORMALIZATIONS
from export.frameworks.hooks import Hooks
from export.frameworks.loading import tf
from export.frameworks.named_graphs import NamedGraph
from export.graph.specs import DenseSpec, FeatureSpec, TableFacts
from export.lookups.padded_ids import average_empty_as_zeros
from export.model.call_tracing import resolve_call
from export.model.dense_copy import restored_bytes_max
from export.model.roots import build_root
from export.model.weights import path_steps
from export.recipe.schema import name_of_call
from export.tables.dumped import KeyFile
from export.user_lines import at_line, line_of_exception
from export.verify.examples import without_signs
from export.verify.reference_inputs import Reference
from export.verify.reference_tables import ReadRows, ReferenceTables
from export.verify.table_rows import read_rows

Rows = NDArray[np.int64]
Results = dict[str, dict[str, NDArray[Any]]]
"""Tower -> output -> [n, ...] float32."""
_RECORDED_SHARE = 0.05
_RECORDED_REST = 1e-3
"""Of the standard deviation and of the largest of recorded values: what bfloat16 on TPUs may
explain.
"""


def checkpoint_rows(checkpoint: Checkpoint, sources: Mapping[str, TableSource]) -> ReadRows:
    """Returns a reader of tables as a checkpoint stores them."""

    return lambda table, rows: read_rows(checkpoint, sources[table], rows).astype(np.float32)


def finite_results(reference: Reference) -> tuple[Reference, Results]:
    """Runs the reference model on examples of which all its outputs are numbers.

    Numbers that were made are those that the model's own Normalization layers expect, else they lie
    around zero. Models that take logarithms or roots of them are given those without a sign.

    Returns:
      What was called with which examples, and each output of each tower.
    Raises:
      VerificationFailed: as `reference_results`; or an output is no number, or not what training
        recorded: names the tower, the output and the example.
    """
    made = reference.job.verify.examples is None
    reference, expected = (
        _expected_numbers(reference) if made else (reference, reference_results(reference))
    )
    if made and _not_finite(expected):
        reference = replace(reference, examples=without_signs(reference.examples, reference.model))
        expected = reference_results(reference)
    wrong = _not_finite(expected)
    if wrong:
        cure = (
            "write some that callers would send, and name their file as verify.examples"
            if made
            else "correct them"
        )
        what = "made examples" if made else "verify.examples"
        raise VerificationFailed(
            f"{wrong} of the original model itself, which is no answer; the {what} do not fit the "
            f"model: {cure}"
        )
    _check_recorded(expected, reference.examples.recorded)
    return reference, expected


def _expected_numbers(reference: Reference) -> tuple[Reference, Results]:
    """Runs the reference model; where numbers reach a Normalization layer as they are, again on
    such as it expects.
    """
    numbers = {
        name: reference.examples.columns[name]
        for name, readers in reference.model.inputs.items()
        if all(
            isinstance(each, DenseSpec) and each.take == "values" and each.dtype == "float32"
            for each in readers
        )
    }
    drawn = {}

    def observe(call: Callable[..., Any], layer: Any, inputs: Any) -> Any:
        for name, column in (
            numbers.items() if tf.executing_eagerly() and tf.is_tensor(inputs) else ()
        ):
            if np.array_equal(np.ravel(inputs), column.values):
                low, high = (
                    np.ravel(call(layer, tf.fill(tf.shape(inputs), each))) for each in (0.0, 1.0)
                )
                # The function is linear, so this is its inverse.
                values = ((column.values - low) / (high - low)).astype(np.float32)
                drawn[name] = column._replace(values=values)
        return call(layer, inputs)

    with Hooks() as hooks:
        for point in NORMALIZATIONS:
            hooks.replace(point, observe)
        expected = reference_results(reference)
    if not drawn:
        return reference, expected
    columns = {**reference.examples.columns, **drawn}
    reference = replace(reference, examples=replace(reference.examples, columns=columns))
    return reference, reference_results(reference)


def _check_recorded(found: Results, recorded: Mapping[str, NDArray[np.float64]]) -> None:
    """Holds what the model answers to what training recorded, which other arithmetic and precision
    computed.

    Raises:
      VerificationFailed: they differ by more than a share of how much the recorded values vary.
    """
    for tower, output, values in [
        (tower, *each) for tower, outputs in found.items() for each in outputs.items()
    ]:
        wanted = recorded.get(f"{tower}.{output}", recorded.get(output))
        if wanted is None:
            continue
        right = wanted.reshape(len(values), -1)
        if right.size != values.size:
            raise UsageError(
                f"verify.expected.{output}: {list(wanted.shape)} values were recorded, tower "
                f"{tower!r} gives {list(values.shape)}"
            )
        difference = values.reshape(right.shape) - right
        rms = float(np.sqrt(np.square(difference).mean()))
        varies = float(right.std())
        if rms > _RECORDED_SHARE * varies + _RECORDED_REST * float(np.abs(right).max()):
            row = int(np.abs(difference).max(axis=1).argmax())
            raise VerificationFailed(
                f"tower {tower!r}, output {output!r}: the model with the checkpoint's weights "
                "differs from "
                f"verify.expected by {rms:.3g} (root mean square; recorded values vary by "
                f"{varies:.3g}), most in "
                f"example {row}: either ids lead to other rows than in training (first_row, a "
                "vocabulary, a hash), or another checkpoint answered when they were recorded"
            )


def _not_finite(results: Results) -> str:
    """Names an output that is no number, and its example; "" if all are."""
    for tower, outputs in results.items():
        for output, values in outputs.items():
            wrong = np.argwhere(~np.isfinite(values))
            if wrong.size:
                value = values[tuple(wrong[0])]
                return f"tower {tower!r}, output {output!r}: example {wrong[0][0]} is {value}"
    return ""


def reference_results(reference: Reference, only: str | None = None) -> Results:
    """Runs the reference model on examples, on a CPU.

    Args:
      reference: The model and its examples.
      only: The one tower to run, whose inputs the examples hold; None: all towers.

    Returns:
      Each output of each tower.
    Raises:
      NotConvertible: the model code raises, or does not answer each example.
      FeatureError: an example does not fit its feature.
      VerificationFailed: the bundle finds other rows for their ids than TensorFlow does.
    """
    traced = reference.model
    if only is not None:
        reference = replace(reference, model=traced.of(only))
    model = reference.model
    job = reference.job
    # The call of one tower may compute the others too, and so read the tables of all.
    facts = {
        name: replace(table, rows=np.iinfo(np.int64).max) if name in reference.dumped else table
        for name, table in traced.tables.items()
    }
    read_rows = _by_key(reference.read_rows, reference.dumped)
    tables = ReferenceTables(facts, read_rows, restored_bytes_max(job, traced))
    returned: dict[tuple[str, tuple[str, ...]], Any] = {}
    eagerly = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        with Hooks() as hooks, tables.answering(), tf.device("/CPU:0"):
            bags = [
                spec
                for spec in model.features.values()
                if isinstance(spec, FeatureSpec) and spec.kind == "bag"
            ]
            if any(isinstance(spec.rule, TextIds) for spec in bags):
                average_empty_as_zeros(hooks)
            root = build_root(job, reference.base)
            given = {
                name: reference.input(name)
                for tower in model.towers.values()
                for name in tower.call_inputs
            }
            calls = {(tower.call, tower.call_inputs) for tower in model.towers.values()}
            named = isinstance(root, NamedGraph)
            for path, inputs in () if named else sorted(calls):  # builds what the factory has not
                _called(root, path, {name: given[name] for name in inputs}, reference, facts)
            tables.know(root)
            if not named:
                _restore(root, reference.prefix, job.checkpoint.object_path)
            for path, inputs in calls:
                returned[path, inputs] = _called(
                    root, path, {name: given[name] for name in inputs}, reference, facts
                )
    finally:
        tf.config.run_functions_eagerly(eagerly)
    results: Results = {}
    for name, tower in model.towers.items():
        whole = returned[(tower.call, tower.call_inputs)]
        results[name] = {
            output: tf.cast(whole if key is None else whole[key], tf.float32).numpy()
            for output, key in tower.keys.items()
        }
        for output, values in results[name].items():
            if len(values) != reference.examples.n:
                raise NotConvertible(
                    f"tower {name!r}, output {output!r}: the model gives {len(values)} answers for "
                    f"{reference.examples.n} examples; give what it joins or reduces an axis "
                    "behind the first, which is the batch"
                )
    return results


def _by_key(read_rows: ReadRows, dumped: Mapping[str, KeyFile]) -> ReadRows:
    """Returns a reader that is asked for keys instead of rows where a table has keys; zeros for
    those it lacks.
    """

    def read(table: str, ids: Rows) -> NDArray[Any]:
        if table not in dumped:
            return read_rows(table, ids)
        rows = dumped[table].rows(ids)
        values = read_rows(table, np.maximum(rows, 0))
        values[rows < 0] = 0
        return values

    return read


def _called(
    root: Any,
    path: str,
    inputs: Mapping[str, Any],
    reference: Reference,
    tables: Mapping[str, TableFacts],
) -> Any:
    try:
        if isinstance(root, NamedGraph):
            return reduce(getattr, path.split(".") if path else (), root).run(
                inputs, _reader(root, reference.prefix, tables)
            )
        return resolve_call(root, path)(inputs)
    except (ExportError, BundleError):
        raise
    except Exception as problem:
        message = " ".join(str(problem).split())
        raise NotConvertible(
            f"{name_of_call(path)} raised {type(problem).__name__} on the examples"
            f"{at_line(line_of_exception(problem))}: {message[:300]}"
        ) from problem


def _reader(
    root: NamedGraph, prefix: Path, tables: Mapping[str, TableFacts]
) -> Callable[[str], Any]:
    """Returns a reader of variables by their names, by TensorFlow itself; tables that left the
    towers are gathered.
    """
    reader = tf.train.load_checkpoint(str(prefix))
    left = {table.config_name for table in tables.values()}
    held = reader.get_variable_to_shape_map()
    return lambda name: None if name in left else reader.get_tensor(root.key(name, held) or name)


def _restore(root: Any, prefix: Path, object_path: str) -> None:
    """Restores the model by TensorFlow itself; the tables of layers are no part of its object
    graph.

    Raises:
      CheckpointError: A data file is damaged.
    """
    for step in reversed(path_steps(object_path)):
        holder = tf.Module()
        setattr(holder, step, root)
        root = holder
    try:
        tf.train.Checkpoint(root).restore(str(prefix)).expect_partial()
    except tf.errors.OpError as problem:
        raise CheckpointError(
            f"checkpoint {prefix}: TensorFlow cannot restore the model: "
            f"{' '.join(problem.message.split())}"
        ) from problem
