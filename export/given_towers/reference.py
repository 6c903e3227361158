"""The towers of the user's files, run on rows of the checkpoint.

A SavedModel runs as it is. A graph of PyTorch is computed by the same operations that are exported:
PyTorch's own results are in the tower's file and in `verify.expected`, and both are compared.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from export.front_end.interface import ReferenceInputs, ReferenceRun, Results
from export.front_end.specs import ModelSpec, TowerSpec, at_path
from export.given_towers.model_file import GivenTowers
from export.graphs.loading import tf
from export.partition.reference_inputs import dense_input, pooled
from export.recipe.schema import ExportJob


@dataclass(frozen=True)
class GivenReference:
    """Towers in files, run on rows of the checkpoint. Implements `ReferenceModel`.

    Attributes:
      job: The recipe.
      model_file: The towers that the model file describes.
      whole: All towers and tables of the model.
    """

    job: ExportJob
    model_file: GivenTowers
    whole: ModelSpec

    def run(
        self,
        model: ModelSpec,
        inputs: ReferenceInputs,
        expect_numbers: bool = False,  # noqa: ARG002 towers in files have no normalization layers
        as_written: bool = False,  # noqa: ARG002 nothing of them is replaced
    ) -> ReferenceRun:
        """See ReferenceModel.run."""
        results: Results = {}
        for name, tower in model.towers.items():
            results[name] = self._outputs(tower, inputs)
        return ReferenceRun(results)

    def with_recipe(self, job: ExportJob) -> Self:
        """See ReferenceModel.with_recipe."""
        return replace(self, job=job)

    def _outputs(self, tower: TowerSpec, inputs: ReferenceInputs) -> dict[str, Any]:
        given_tower = self.model_file.towers[tower.call.path]
        tensors = {}
        for name in given_tower.inputs:
            bag = self.model_file.activations.bags.get(name)
            # A feature of a table is an activation, any other input is sent as it is.
            if bag is None:
                tensors[name] = tf.constant(dense_input(name, self.job, inputs))
            else:
                tensors[name] = tf.constant(pooled(name, bag, inputs, self.whole))
        # As a graph with an open batch, as it is exported: of one example, the batch would be a
        # dimension of size 1, which PyTorch's `squeeze` removes.
        run = tf.function(given_tower, input_signature=[dict(given_tower.inputs)], autograph=False)
        result = run(tensors)
        outputs = {}
        for output, path in tower.paths.items():
            values = at_path(result, path)
            outputs[output] = np.asarray(values).astype(np.float32)
        return outputs
