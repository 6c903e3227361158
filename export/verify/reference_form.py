"""The form of a tower that others are compared with on hostile numbers: its SavedModel in f32."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bundle.errors import FeatureError
from bundle.format.manifest import Tower
from export.bounds import typical_magnitude
from export.errors import VerificationFailed
from export.front_end.specs import TowerSpec
from export.graphs.number_keys import keys_of, numbers_of
from export.verify.forms import OpenForm, Values, open_form, run
from export.verify.hostile_examples import (
    HostileExamples,
    NumberInput,
    batches,
    completed,
    find_accepted,
    number_inputs,
)
from export.verify.hostile_numbers import grid, numbers_around
from export.verify.reference_inputs import Reference
from export.verify.step_search import find_steps
from runtime.towers import find_form

_GRID_SIZE = 1 << 10
"""The number of numbers, over all inputs of a tower, between which steps are looked for."""
_GRID_MIN = 16
"""The number of numbers of one input that are enough to look for steps."""


class ReferenceForm:
    """A tower's SavedModel in f32.

    Attributes:
      tower: The tower's entry in the manifest.
      values: [n, ...] values of each feature of the tower, of the recipe's examples.
      inputs: The inputs by which callers send numbers.
      chain: The SavedModel.
      examples: The recipe's examples.
      typical: [...] the typical magnitude of each output.
    """

    def __init__(
        self, reference: Reference, root: Path, spec: TowerSpec, tower: Tower, values: Values
    ) -> None:
        self.tower = tower
        features = {source for tensor in tower.inputs for source in tensor.sources}
        self.values = {name: array for name, array in values.items() if name in features}
        self.inputs = number_inputs(reference, spec)
        form = find_form(tower.forms, ("saved_model", "f32"))
        # Every tower has this form.
        assert form is not None  # noqa: S101
        self.chain = [open_form(reference, root, spec.name, tower, form)]
        self.examples = HostileExamples(self.values, {}).ordered()
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

    def accepted(self, examples: HostileExamples) -> tuple[HostileExamples, Values]:
        """Returns the examples that the SavedModel takes, and its outputs."""
        try:
            return examples, self.outputs_of(self.chain, examples)
        except VerificationFailed:
            accepted = examples.chosen(self.is_accepted(examples))
        if not accepted.n:
            return accepted, {}
        return accepted, self.outputs_of(self.chain, accepted)

    def is_accepted(self, examples: HostileExamples) -> NDArray[np.bool_]:
        """Returns [n] which examples the SavedModel takes."""
        return find_accepted(
            examples.n, lambda rows: not self.failure_of(self.chain, examples.chosen(rows))
        )

    def numbers_around_steps(self, number_input: NumberInput) -> NDArray[np.generic]:
        """Returns [m] numbers around the steps of the tower in one input, ascending."""
        grid_size = _GRID_SIZE // len(self.inputs)
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
        first = {name: array[:1] for name, array in self.values.items()}
        output_count = sum(values.size for values in self.typical.values())
        outputs = np.zeros((len(numbers), output_count))
        for rows in batches(len(numbers), self.values):
            batch = completed(number_input.examples(numbers[rows, np.newaxis]), first)
            columns = [
                values.reshape(batch.n, -1)
                for values in self.outputs_of(self.chain, batch).values()
            ]
            outputs[rows] = np.concatenate(columns, axis=1)
        return np.nan_to_num(outputs, posinf=0.0, neginf=0.0)
