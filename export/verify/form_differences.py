"""Differences of a form of a tower from its SavedModel, what rounding may make of them, and those
that are tolerated with a note.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.format.manifest import Precision
from export.bounds import ABSOLUTE, MEANINGFUL_MAX, ROUNDING_FACTOR, largest_at, of_magnitudes
from export.front_end.interface import TracedTower
from export.front_end.specs import TowerSpec
from export.graphs.internals import run_flat
from export.graphs.loading import tf
from export.towers.bfloat16 import in_bfloat16
from export.towers.data_flow import ExampleCost
from export.towers.rounding import with_rounding
from export.verify.examples import chosen_values
from export.verify.forms import Values
from export.verify.hostile_examples import HostileExamples, batches
from runtime.tower_inputs import tower_inputs

_SAMPLES = 8
"""The number of times that the sums of a tower are rounded at random."""

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class ComparedOutputs:
    """Outputs of a form beside those of the SavedModel.

    Attributes:
      examples: The examples.
      expected: [n, ...] the SavedModel's outputs.
      results: [n, ...] the form's outputs.
    """

    examples: HostileExamples
    expected: Values
    results: Values

    def chosen(self, rows: NDArray[np.int64]) -> ComparedOutputs:
        """Returns the outputs of some examples."""
        return ComparedOutputs(
            self.examples.chosen(rows),
            chosen_values(self.expected, rows),
            chosen_values(self.results, rows),
        )

    def differences(
        self, typical: Values, limit: float | None, rounding: Values | None = None
    ) -> NDArray[np.float64]:
        """Returns [n] the largest difference of each example that is more than is allowed, as a
        share of the size of the output; 0 where all are allowed.

        Args:
          typical: [...] the typical magnitude of each output.
          limit: The recipe's limit; None: the parity rule holds.
          rounding: [n, ...] what rounding may make of each output; None: nothing.
        """
        largest = np.zeros(self.examples.n)
        # A service responds with an error where a result is not finite.
        measures_nothing = self.examples.magnitudes > MEANINGFUL_MAX
        for name, values in self.expected.items():
            expected = values.astype(np.float64)
            result = self.results[name].astype(np.float64)
            scale = np.maximum(np.abs(expected), typical[name])
            allowed = of_magnitudes(scale, limit)
            if rounding is not None:
                allowed += ROUNDING_FACTOR * rounding[name]
            with np.errstate(invalid="ignore", over="ignore"):
                difference = np.nan_to_num(np.abs(result - expected), nan=np.inf, posinf=np.inf)
                # Where the model has no number, there is none to differ from.
                is_allowed = (difference <= allowed) | ~np.isfinite(expected)
                share = difference / (scale + ABSOLUTE)
            is_allowed[measures_nothing] |= ~np.isfinite(result[measures_nothing])
            share[is_allowed] = 0.0
            largest = np.maximum(largest, share.reshape(len(share), -1).max(axis=1, initial=0.0))
        return largest

    def without_number(self) -> tuple[Flags, Flags]:
        """Returns [n] whether the form lacks a number that the SavedModel has, and the reverse."""
        lacks = np.zeros(self.examples.n, bool)
        invents = np.zeros(self.examples.n, bool)
        for name, expected in self.expected.items():
            is_number = np.isfinite(expected).reshape(len(expected), -1)
            result_is_number = np.isfinite(self.results[name]).reshape(len(expected), -1)
            lacks |= (is_number & ~result_is_number).any(axis=1)
            invents |= (~is_number & result_is_number).any(axis=1)
        return lacks, invents

    def worst(self) -> tuple[str, Any, Any]:
        """Returns the output with the largest difference in the first example, its value and the
        SavedModel's.
        """

        def largest_of(name: str) -> tuple[float, int]:
            return largest_at(self.results[name][0], self.expected[name][0])

        name = max(self.expected, key=lambda output: largest_of(output)[0])
        _, position = largest_of(name)
        return (
            name,
            self.results[name][0].reshape(-1)[position],
            self.expected[name][0].reshape(-1)[position],
        )


_DIFFERS = (
    "it gives another number than the trained model for {}: let callers send no such numbers, or "
    "clip them in the model"
)
_LACKS = (
    "it makes NaN or an infinity of {}, where the trained model gives a number: such requests are "
    "rejected"
)
_INVENTS = (
    "it gives a number for {}, of which the trained model makes NaN or an infinity: let callers "
    "send no such numbers, or clip them in the model"
)


class Tolerated:
    """Differences for which a form is served all the same, with notes: of numbers that measure
    nothing, and of those of which only one side makes NaN or an infinity.
    """

    def __init__(self) -> None:
        # The smallest numbers, and their magnitude, by the note about them.
        self._smallest = dict.fromkeys((_DIFFERS, _LACKS, _INVENTS), ("", np.inf))

    def add(
        self, compared: ComparedOutputs, differences: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Adds differences; returns the [n] that are not tolerated, 0 for all others.

        Args:
          compared: The outputs of both sides, in the order of the magnitudes of the numbers.
          differences: [n] the largest difference of each example.
        """
        examples = compared.examples
        measures_nothing = examples.magnitudes > MEANINGFUL_MAX
        lacks, invents = compared.without_number()
        rows_by_note = {
            _DIFFERS: measures_nothing & (differences > 0),
            _LACKS: lacks,
            _INVENTS: invents & ~measures_nothing,
        }
        for note, rows in rows_by_note.items():
            if not rows.any():
                continue
            row = int(rows.argmax())
            magnitude = float(examples.magnitudes[row])
            if magnitude < self._smallest[note][1]:
                self._smallest[note] = examples.text(row), magnitude
        return np.where(measures_nothing, 0.0, differences)

    def notes(self) -> list[str]:
        """Returns the notes."""
        return [note.format(text) for note, (text, _) in self._smallest.items() if text]


def rounded_function(tower: TracedTower, precision: Precision) -> Any:
    """Returns the function of a tower whose sums are rounded at random, as a form of some precision
    may round them.

    Args:
      tower: The traced tower, whose variables have their values.
      precision: The precision of the form.
    """
    if precision == "bf16":
        tower = in_bfloat16(tower)
    return with_rounding(tower, precision).function


def spreads(
    function: Any, spec: TowerSpec, cost: ExampleCost, examples: HostileExamples
) -> dict[str, NDArray[np.float64]]:
    """Returns [n, ...] by how much each output of a rounded tower varies; infinite where it is not
    always a number.

    Args:
      function: The function, as `rounded_function` returns it.
      spec: The tower.
      cost: What an example costs the tower.
      examples: The examples.
    """
    varied: dict[str, list[NDArray[np.float64]]] = {output.name: [] for output in spec.outputs}
    for rows in batches(examples.n, examples.values, cost, _SAMPLES):
        batch = examples.chosen(rows)
        arrays = tower_inputs(spec.inputs, batch.values, batch.n)
        # Each row of a batch is rounded otherwise, so the copies of an example are its samples.
        copies = [np.repeat(arrays[tensor.name], _SAMPLES, axis=0) for tensor in spec.inputs]
        results = run_flat(function, [tf.constant(array) for array in copies])
        for name, parts in varied.items():
            values = results[name].numpy().astype(np.float64)
            samples = values.reshape(batch.n, _SAMPLES, *values.shape[1:])
            with np.errstate(invalid="ignore"):
                spread = np.ptp(samples, axis=1)
            parts.append(np.nan_to_num(spread, nan=np.inf, posinf=np.inf))
    return {name: np.concatenate(parts) for name, parts in varied.items()}
