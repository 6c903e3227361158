"""What the reference model gives for examples, and whether that can be compared with anything.

The model itself is the front end's: `export/front_end/interface.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.format.manifest import TableSource
from export.checkpoint.reader import Checkpoint
from export.errors import (
    NotConvertible,
    UsageError,
    VerificationFailed,
)
from export.front_end.interface import ReadRows, ReferenceRun, Results, Rows
from export.tables.dumped import KeyFile
from export.verify.examples import without_signs
from export.verify.reference_inputs import Reference
from export.verify.table_rows import read_rows

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
    reference, found = _run_on_taken(reference, expect_numbers=made)
    if found.expected_numbers:
        columns = {**reference.examples.columns, **found.expected_numbers}
        reference = replace(reference, examples=replace(reference.examples, columns=columns))
        found = _run(reference)
    expected = found.results
    if made and _not_finite(expected):
        reference = replace(reference, examples=without_signs(reference.examples, reference.model))
        expected = reference_results(reference)
    if reference.examples.known is not None and _not_finite(expected):
        return finite_results(_of_known_ids(reference))
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


def _run_on_taken(reference: Reference, expect_numbers: bool) -> tuple[Reference, ReferenceRun]:
    """Runs the reference model; on known ids alone if it rejects the unknown ones among invented
    examples.
    """
    try:
        return reference, _run(reference, expect_numbers)
    except NotConvertible:
        if reference.examples.known is None:
            raise
        reference = _of_known_ids(reference)
        return reference, _run(reference, expect_numbers)


def _of_known_ids(reference: Reference) -> Reference:
    assert reference.examples.known is not None  # noqa: S101 - asked before
    return replace(reference, examples=reference.examples.known)


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
    if only is not None:
        reference = replace(reference, model=reference.model.of(only))
    return _run(reference).results


def _run(reference: Reference, expect_numbers: bool = False) -> ReferenceRun:
    inputs = reference.inputs
    if inputs.keyed:
        inputs = replace(inputs, read_rows=_by_key(inputs.read_rows, reference.dumped))
    found = reference.original.run(reference.model, inputs, expect_numbers)
    for name, outputs in found.results.items():
        for output, values in outputs.items():
            if len(values) != reference.examples.n:
                raise NotConvertible(
                    f"tower {name!r}, output {output!r}: the model gives {len(values)} answers for "
                    f"{reference.examples.n} examples; give what it joins or reduces an axis "
                    "behind the first, which is the batch"
                )
    return found


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
