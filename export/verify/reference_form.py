"""The form of a tower that others are compared with on hostile numbers: its SavedModel in f32."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.errors import FeatureError
from bundle.format.manifest import Precision, Tower
from export.bounds import typical_magnitude
from export.errors import VerificationFailed
from export.front_end.interface import TracedTower
from export.graphs.number_keys import keys_of, numbers_of
from export.towers.data_flow import graph_cost
from export.verify.examples import chosen_values
from export.verify.form_differences import ComparedOutputs, rounded_function, spreads
from export.verify.forms import OpenForm, Values, open_saved_model, run
from export.verify.hostile_examples import (
    ROWS_MAX,
    HostileExamples,
    NumberInput,
    affordable_rows,
    batches,
    completed,
    find_accepted,
    hostile_examples,
    number_inputs,
)
from export.verify.hostile_numbers import grid, numbers_around
from export.verify.reference_inputs import Reference
from export.verify.step_search import find_steps

_GRID_SIZE = 1 << 10
"""The number of numbers, over all inputs of a tower, between which steps are looked for."""
_GRID_MIN = 16
"""The number of numbers of one input that are enough to look for steps."""


class ReferenceForm:
    """A tower's SavedModel in f32.

    Attributes:
      traced: The tower, whose variables have their values.
      tower: The tower's entry in the manifest.
      cost: What an example costs the tower.
      values: [n, ...] values of each feature of the tower, of the recipe's examples.
      inputs: The inputs by which callers send numbers.
      chain: The SavedModel.
      examples: The recipe's examples.
      typical: [...] the typical magnitude of each output.
    """

    def __init__(
        self, reference: Reference, root: Path, traced: TracedTower, tower: Tower, values: Values
    ) -> None:
        self.traced = traced
        self.tower = tower
        self.cost = graph_cost(traced.function.graph)
        features = {source for tensor in tower.inputs for source in tensor.sources}
        self.values = {name: array for name, array in values.items() if name in features}
        self.inputs = number_inputs(reference, traced.spec)
        self.chain = [open_saved_model(reference, root, traced.spec.name, tower)]
        self.examples = HostileExamples(self.values, {}).ordered()
        self._rounded: dict[Precision, Any] = {}
        _, outputs = self.accepted(self.examples)
        self.typical = {name: typical_magnitude(array) for name, array in outputs.items()}

    def outputs_of(self, chain: Sequence[OpenForm], examples: HostileExamples) -> Values:
        """Returns the outputs of the tower that forms compute.

        Raises:
          VerificationFailed: A form cannot compute with the examples, or an output has another
            shape than the model's.
        """
        tensors = run(chain, examples.values, examples.n)
        outputs = {}
        for output in self.tower.outputs:
            values = tensors[output.name]
            shape = (examples.n, *output.shape[1:])
            if values.shape != shape:
                raise VerificationFailed(
                    f"output {output.name!r} is {list(values.shape)}, and {list(shape)} was "
                    "expected"
                )
            outputs[output.name] = values
        return outputs

    def failure_of(self, chain: Sequence[OpenForm], examples: HostileExamples) -> str:
        """Returns why forms cannot compute with examples; "" if they can."""
        try:
            self.outputs_of(chain, examples)
        except VerificationFailed as problem:
            return str(problem)
        return ""

    def accepted(self, examples: HostileExamples) -> tuple[NDArray[np.int64], Values]:
        """Returns the positions of the examples that the SavedModel takes, and its outputs."""
        rows = np.arange(examples.n)
        try:
            return rows, self.outputs_of(self.chain, examples)
        except VerificationFailed:
            is_accepted = find_accepted(
                examples.n, lambda group: not self.failure_of(self.chain, examples.chosen(group))
            )
        rows = rows[is_accepted]
        if not rows.size:
            return rows, {}
        return rows, self.outputs_of(self.chain, examples.chosen(rows))

    def hostile_batches(
        self, inputs: Sequence[NumberInput], rows_max: int = ROWS_MAX
    ) -> Iterator[HostileExamples]:
        """Yields examples with hostile numbers, and with numbers around the steps of the tower, in
        the order of their magnitudes, of some inputs each.

        Args:
          inputs: The inputs that get such numbers.
          rows_max: The number of examples that hold hostile numbers in one input, over all inputs.
        """
        for batch in hostile_examples(self.cost, inputs, self.values, rows_max):
            yield batch.ordered()
        for number_input in inputs:
            around = self._numbers_around_steps(number_input)[: rows_max // len(inputs), np.newaxis]
            for rows in batches(len(around), self.values, self.cost):
                examples = number_input.examples(around[rows])
                yield completed(examples, self.values).ordered()

    def differences(
        self, compared: ComparedOutputs, precision: Precision, limit: float | None
    ) -> NDArray[np.float64]:
        """Returns [n] the largest difference of each example, as a share of the size of the output;
        0 where all of them are due to rounding.

        Args:
          compared: Outputs of both sides.
          precision: The precision whose rounding they may have.
          limit: The recipe's limit; None: the parity rule holds.
        """
        differences = compared.differences(self.typical, limit)
        (suspects,) = differences.nonzero()
        if suspects.size:
            if precision not in self._rounded:
                self._rounded[precision] = rounded_function(self.traced, precision)
            suspected = compared.chosen(suspects)
            rounding = spreads(
                self._rounded[precision], self.traced.spec, self.cost, suspected.examples
            )
            differences[suspects] = suspected.differences(self.typical, limit, rounding)
        return differences

    def _numbers_around_steps(self, number_input: NumberInput) -> NDArray[np.generic]:
        """Returns [m] numbers around the steps of the tower in one input, ascending."""
        grid_size = min(_GRID_SIZE, affordable_rows(self.cost)) // len(self.inputs)
        dtype = number_input.dtype
        # Lists of several lengths have no step that all of them share.
        if number_input.size is None or grid_size < _GRID_MIN:
            return np.empty(0, dtype)
        numbers = number_input.accepted(grid(dtype, grid_size))

        def outputs_of(keys: NDArray[np.int64]) -> NDArray[np.float64]:
            return self._outputs_of_numbers(number_input, numbers_of(keys, dtype))

        try:
            low, high = find_steps(outputs_of, keys_of(numbers))
        except (FeatureError, VerificationFailed):
            # Numbers between two that are accepted are not.
            return np.empty(0, dtype)
        return number_input.accepted(numbers_around(dtype, low, high))

    def _outputs_of_numbers(
        self, number_input: NumberInput, numbers: NDArray[np.generic]
    ) -> NDArray[np.float64]:
        """Returns [m, d] all outputs of the SavedModel for the first example with other numbers,
        zeros for what is not finite.
        """
        first = chosen_values(self.values, slice(1))
        output_count = sum(values.size for values in self.typical.values())
        outputs = np.zeros((len(numbers), output_count))
        for rows in batches(len(numbers), self.values, self.cost):
            batch = completed(number_input.examples(numbers[rows, np.newaxis]), first)
            columns = [
                values.reshape(batch.n, -1)
                for values in self.outputs_of(self.chain, batch).values()
            ]
            outputs[rows] = np.concatenate(columns, axis=1)
        return np.nan_to_num(outputs, posinf=0.0, neginf=0.0)
