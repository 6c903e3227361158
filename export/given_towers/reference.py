"""The towers as they were given, run on rows of the checkpoint.

A SavedModel runs as it is. A graph of PyTorch is computed by the same operations that are exported:
what PyTorch itself returned stands in the tower's file and in `verify.expected`, and both are
compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from export.front_end.interface import ReferenceInputs, ReferenceRun, Results
from export.front_end.specs import ModelSpec, TowerSpec
from export.given_towers.model_file import GivenTowers
from export.graphs.loading import tf
from export.recipe.schema import ExportJob
from export.tensorflow_models.reference.inputs import dense_input, pooled


@dataclass(frozen=True)
class GivenReference:
    """Towers in files, run outside of any graph. Implements `ReferenceModel`.

    Attributes:
      job: the recipe.
      given: what the model file describes.
      whole: all towers and tables of the model.
    """

    job: ExportJob
    given: GivenTowers
    whole: ModelSpec

    def run(
        self,
        model: ModelSpec,
        inputs: ReferenceInputs,
        expect_numbers: bool = False,  # noqa: ARG002 no layers tell them
    ) -> ReferenceRun:
        """See ReferenceModel.run."""
        results: Results = {}
        for name, tower in model.towers.items():
            results[name] = self._outputs(tower, inputs)
        return ReferenceRun(results)

    def _outputs(self, tower: TowerSpec, inputs: ReferenceInputs) -> dict[str, Any]:
        taken = {}
        for name in self.given.towers[tower.call.path].inputs:
            bag = self.given.activations.bags.get(name)
            if bag is None:
                taken[name] = tf.constant(dense_input(name, self.job, inputs))
            else:
                taken[name] = tf.constant(pooled(name, bag, inputs, self.whole))
        found = self.given.towers[tower.call.path](taken)
        return {
            output: np.asarray(found if key is None else found[key]).astype(np.float32)
            for output, key in tower.keys.items()
        }
