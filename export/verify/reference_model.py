"""The results of the reference model for examples, and whether they can be a reference.

The front end provides the model itself: `export/front_end/interface.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.format.manifest import TableSource
from export.bounds import RECORDED_REST, RECORDED_SHARE
from export.checkpoint.reader import Checkpoint
from export.errors import (
    NotConvertible,
    UsageError,
    VerificationFailed,
)
from export.front_end.interface import ReadRows, ReferenceInputs, ReferenceRun, Results, Rows
from export.front_end.specs import FeatureSpec
from export.id_graphs.step_functions import PACKET
from export.raised_errors import one_line
from export.tables.dumped import KeyFile
from export.user_lines import at_line, line_of_exception
from export.verify.examples import chosen_columns, without_signs
from export.verify.reference_inputs import Reference
from export.verify.table_rows import read_rows


def checkpoint_rows(checkpoint: Checkpoint, sources: Mapping[str, TableSource]) -> ReadRows:
    """Returns a reader of tables as a checkpoint stores them."""

    return lambda table, rows: read_rows(checkpoint, sources[table], rows).astype(np.float32)


def finite_results(reference: Reference) -> tuple[Reference, Results]:
    """Runs the reference model on examples for which all its outputs are finite.

    Numbers of synthetic examples are those that the model's own Normalization layers expect, else
    they lie around zero. A model that takes logarithms or roots of them gets them without a sign.

    Returns:
      The model with the examples that it was called with, and each output of each tower.
    Raises:
      VerificationFailed: `reference_results` fails; or an output is NaN or infinite, or not what
        training recorded: names the tower, the output and the example.
    """
    is_synthetic = reference.job.verify.examples is None
    reference, reference_run = _run_on_accepted(reference, expect_numbers=is_synthetic)
    if reference_run.expected_numbers:
        columns = {**reference.examples.columns, **reference_run.expected_numbers}
        reference = replace(reference, examples=replace(reference.examples, columns=columns))
        reference_run = _run(reference)
    expected = reference_run.results

    # Real examples stay as they are: what they lack is the user's to correct.
    if is_synthetic and _not_finite(expected):
        reference = replace(reference, examples=without_signs(reference.examples, reference.model))
        expected = reference_results(reference)
    if reference.examples.with_known_ids is not None and _not_finite(expected):
        # JAX makes NaN of an id that its table lacks.
        return finite_results(_with_known_ids(reference))
    not_finite = _not_finite(expected)
    if not_finite:
        examples = "verify.examples"
        remedy = "correct them"
        if is_synthetic:
            examples = "synthetic examples"
            remedy = "write some that clients would send, and name their file as verify.examples"
        raise VerificationFailed(
            f"{not_finite} of the original model itself; the {examples} do not fit the model: "
            f"{remedy}"
        )
    check_recorded(expected, reference.examples.recorded)
    return reference, expected


def _run_on_accepted(reference: Reference, expect_numbers: bool) -> tuple[Reference, ReferenceRun]:
    """Runs the reference model; on known ids alone if it rejects the unknown ids of synthetic
    examples.
    """
    try:
        return reference, _run(reference, expect_numbers)
    except NotConvertible as problem:
        if reference.examples.with_known_ids is not None:
            reference = _with_known_ids(reference)
            return _run_on_accepted(reference, expect_numbers)
        if reference.examples.n > 1 and _runs_alone(reference):
            cause = problem.__cause__ or problem
            raise NotConvertible(
                "the call computes one example at a time, and a service computes several at once: "
                "write a function in the factory's file that computes any number, and name it as "
                f"towers.NAME.call. For {reference.examples.n} examples, the call raised "
                f"{one_line(cause)}{at_line(line_of_exception(cause))}"
            ) from problem
        raise


def _runs_alone(reference: Reference) -> bool:
    """Returns whether the reference model computes the first example by itself."""
    inputs = model_inputs(reference)
    columns = chosen_columns(inputs.columns, np.arange(1), inputs.n)
    try:
        reference.original.run(reference.model, replace(inputs, n=1, columns=columns))
    except NotConvertible:
        return False
    return True


def _with_known_ids(reference: Reference) -> Reference:
    assert reference.examples.with_known_ids is not None  # noqa: S101 - callers check it
    return replace(reference, examples=reference.examples.with_known_ids)


def check_recorded(results: Results, recorded: Mapping[str, NDArray[np.float64]]) -> None:
    """Compares the outputs of the model with what training recorded, in another precision and by
    other arithmetic.

    Raises:
      VerificationFailed: They differ by more than a share of how much the recorded values vary.
    """
    for tower, outputs in results.items():
        for output, values in outputs.items():
            expected = recorded_values(tower, output, recorded)
            if expected is not None:
                _check_recorded_output(tower, output, values, expected)


def recorded_values(
    tower: str, output: str, recorded: Mapping[str, NDArray[np.float64]]
) -> NDArray[np.float64] | None:
    """Returns the values that training recorded of an output; None: it recorded none."""
    # An output of several towers is named with its tower.
    return recorded.get(f"{tower}.{output}", recorded.get(output))


def _check_recorded_output(
    tower: str, output: str, values: NDArray[Any], recorded: NDArray[np.float64]
) -> None:
    expected = recorded.reshape(len(values), -1)
    if expected.size != values.size:
        raise UsageError(
            f"verify.expected.{output}: {list(recorded.shape)} values were recorded, tower "
            f"{tower!r} gives {list(values.shape)}"
        )
    difference = values.reshape(expected.shape) - expected
    rms = float(np.sqrt(np.square(difference).mean()))
    deviation = float(expected.std())
    largest = float(np.abs(expected).max())
    if rms > RECORDED_SHARE * deviation + RECORDED_REST * largest:
        example = int(np.abs(difference).max(axis=1).argmax())
        raise VerificationFailed(
            f"tower {tower!r}, output {output!r}: the model with the checkpoint's weights "
            f"differs from verify.expected by {rms:.3g} (root mean square; recorded values vary "
            f"by {deviation:.3g}), most in example {example}: either ids lead to other rows than "
            "in training (first_row, a vocabulary, a hash), or the values were recorded with "
            "another checkpoint"
        )


def _not_finite(results: Results) -> str:
    """Returns the name of an output that is NaN or infinite, and its example; "" if none is."""
    for tower, outputs in results.items():
        for output, values in outputs.items():
            positions = np.argwhere(~np.isfinite(values))
            if positions.size:
                value = values[tuple(positions[0])]
                return f"tower {tower!r}, output {output!r}: example {positions[0][0]} is {value}"
    return ""


def reference_results(reference: Reference, only: str | None = None) -> Results:
    """Runs the reference model on examples, on a CPU.

    Args:
      reference: The model and its examples.
      only: The one tower to run, whose inputs the examples hold; None: all towers.

    Returns:
      Each output of each tower.
    Raises:
      NotConvertible: The model code raises, or does not return a row for each example.
      FeatureError: An example does not fit its feature.
      VerificationFailed: The bundle finds other rows for their ids than TensorFlow does.
    """
    if only is not None:
        reference = replace(reference, model=reference.model.of(only))
    return _run(reference).results


def model_inputs(reference: Reference) -> ReferenceInputs:
    """Returns the examples as the reference model reads them."""
    inputs = reference.inputs
    if inputs.keyed:
        inputs = replace(inputs, read_rows=_by_key(inputs.read_rows, reference.dumped))
    return inputs


def _run(reference: Reference, expect_numbers: bool = False) -> ReferenceRun:
    n = reference.examples.n
    inputs = model_inputs(reference)
    features = reference.model.features.values()
    if any(isinstance(spec, FeatureSpec) and spec.computes_floats for spec in features):
        # The last examples of a batch may otherwise lie on the other side of a step.
        rows = np.arange(n + -n % PACKET) % n
        columns = chosen_columns(inputs.columns, rows, n)
        inputs = replace(inputs, n=len(rows), columns=columns)
    reference_run = reference.original.run(reference.model, inputs, expect_numbers)
    results: dict[str, dict[str, NDArray[Any]]] = {}
    for name, outputs in reference_run.results.items():
        results[name] = {}
        for output, values in outputs.items():
            if len(values) != inputs.n:
                raise NotConvertible(
                    f"tower {name!r}, output {output!r}: the model gives {len(values)} rows for "
                    f"{inputs.n} examples; give what it joins or reduces an axis behind the "
                    "first, which is the batch"
                )
            results[name][output] = values[:n]
    expected_numbers = chosen_columns(reference_run.expected_numbers, np.arange(n), inputs.n)
    return ReferenceRun(results, expected_numbers)


def _by_key(read_rows: ReadRows, dumped: Mapping[str, KeyFile]) -> ReadRows:
    """Returns a reader that takes keys instead of rows where a table has keys, and returns zeros
    for keys that the table lacks.
    """

    def read(table: str, ids: Rows) -> NDArray[Any]:
        if table not in dumped:
            return read_rows(table, ids)
        rows = dumped[table].rows(ids)
        # Row 0 stands for missing keys, whose values are replaced below.
        values = read_rows(table, np.maximum(rows, 0))
        values[rows < 0] = 0
        return values

    return read
