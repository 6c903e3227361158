"""Differences of a form of a tower from its SavedModel, and what rounding may make of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.format.manifest import Precision, TowerInput, TowerOutput
from export.bounds import ABSOLUTE, MEANINGFUL_MAX, ROUNDING_FACTOR, of_magnitudes
from export.front_end.interface import TracedTower
from export.graphs.internals import run_flat
from export.graphs.loading import tf
from export.towers.bfloat16 import in_bfloat16
from export.towers.rounding import with_rounding
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
            {name: array[rows] for name, array in self.expected.items()},
            {name: array[rows] for name, array in self.results.items()},
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
        largest = -1.0
        worst: tuple[str, Any, Any] = ("", 0, 0)
        for name, values in self.expected.items():
            expected = values[0].reshape(-1)
            result = self.results[name][0].reshape(-1)
            with np.errstate(invalid="ignore"):
                difference = np.abs(result.astype(np.float64) - expected)
            difference = np.nan_to_num(difference, nan=np.inf, posinf=np.inf)
            position = int(difference.argmax())
            if difference[position] > largest:
                largest = float(difference[position])
                worst = (name, result[position], expected[position])
        return worst


@dataclass
class NotFinite:
    """The smallest numbers of which only one of two forms makes NaN or an infinity, or for which
    they differ although they measure nothing.

    Attributes:
      differs: Numbers that measure nothing, for which the two give different numbers: a clause, and
        their magnitude.
      lacks: Numbers for which the form gives none and the trained model does: a clause, and their
        magnitude.
      invents: Numbers for which it gives one and the trained model does not: likewise.
    """

    differs: tuple[str, float] = ("", np.inf)
    lacks: tuple[str, float] = ("", np.inf)
    invents: tuple[str, float] = ("", np.inf)

    def add(self, compared: ComparedOutputs) -> None:
        """Adds the smallest numbers of which only one of two forms makes NaN or an infinity."""
        examples = compared.examples
        lacks, invents = compared.without_number()
        self.lacks = _smaller(self.lacks, examples, lacks)
        invents &= examples.magnitudes <= MEANINGFUL_MAX
        self.invents = _smaller(self.invents, examples, invents)

    def without_meaningless(
        self, compared: ComparedOutputs, differences: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Returns the [n] differences, 0 for numbers that measure nothing; adds the smallest of
        these that differ.
        """
        measures_nothing = compared.examples.magnitudes > MEANINGFUL_MAX
        differs = measures_nothing & (differences > 0)
        self.differs = _smaller(self.differs, compared.examples, differs)
        return np.where(measures_nothing, 0.0, differences)

    def notes(self) -> list[str]:
        """Returns notes on a form that is served all the same."""
        notes = []
        text, _ = self.differs
        if text:
            notes.append(
                f"it gives another number than the trained model for {text}: let callers send no "
                "such numbers, or clip them in the model"
            )
        text, _ = self.lacks
        if text:
            notes.append(
                f"it makes NaN or an infinity of {text}, where the trained model gives a number: "
                "such requests are rejected"
            )
        text, _ = self.invents
        if text:
            notes.append(
                f"it gives a number for {text}, of which the trained model makes NaN or an "
                "infinity: let callers send no such numbers, or clip them in the model"
            )
        return notes


def _smaller(
    smallest: tuple[str, float], examples: HostileExamples, rows: NDArray[np.bool_]
) -> tuple[str, float]:
    """Returns the text and the magnitude of the smallest of some examples, if it is smaller than
    the smallest so far, which is returned otherwise.
    """
    if not rows.any():
        return smallest
    # The examples are in the order of their magnitudes.
    row = int(rows.argmax())
    magnitude = float(examples.magnitudes[row])
    if magnitude >= smallest[1]:
        return smallest
    return examples.text(row), magnitude


@dataclass(frozen=True)
class RoundedTower:
    """A tower whose sums are rounded at random, as a form of some precision may round them.

    Attributes:
      tower: The traced tower, whose variables have their values.
      precision: The precision of the form.
    """

    tower: TracedTower
    precision: Precision

    @cached_property
    def _function(self) -> Any:
        tower = self.tower
        if self.precision == "bf16":
            tower = in_bfloat16(tower)
        return with_rounding(tower, self.precision).function

    def spreads(self, examples: HostileExamples) -> dict[str, NDArray[np.float64]]:
        """Returns [n, ...] by how much each output varies; infinite where it is not always a
        number.
        """
        inputs = self.tower.spec.inputs
        outputs = self.tower.spec.outputs
        spreads = [
            _spreads(self._function, inputs, outputs, examples.chosen(rows))
            for rows in batches(examples.n, examples.values, _SAMPLES)
        ]
        return {
            output.name: np.concatenate([of_batch[output.name] for of_batch in spreads])
            for output in outputs
        }


def _spreads(
    function: Any,
    inputs: Sequence[TowerInput],
    outputs: Sequence[TowerOutput],
    batch: HostileExamples,
) -> Mapping[str, NDArray[np.float64]]:
    arrays = tower_inputs(inputs, batch.values, batch.n)
    # Each row of a batch is rounded otherwise, so the copies of an example are its samples.
    tensors = [tf.constant(np.repeat(arrays[tensor.name], _SAMPLES, axis=0)) for tensor in inputs]
    results = run_flat(function, tensors)
    spreads = {}
    for output in outputs:
        values = results[output.name].numpy().astype(np.float64)
        samples = values.reshape(batch.n, _SAMPLES, *values.shape[1:])
        with np.errstate(invalid="ignore"):
            spread = samples.max(axis=1) - samples.min(axis=1)
        spreads[output.name] = np.nan_to_num(spread, nan=np.inf, posinf=np.inf)
    return spreads
