"""Chooses the front end of a recipe: the one module that knows which front ends there are."""

from __future__ import annotations

from pathlib import Path

from export.checkpoint.reader import is_jax
from export.front_end.interface import FrontEnd
from export.locations import location_of
from export.recipe.schema import ExportJob


def front_end_of(job: ExportJob, base: Path) -> FrontEnd:
    """Returns the front end that understands a recipe's model: JAX's for what Orbax saved,
    unless it holds the variables of a model of Keras.

    Args:
      job: the recipe.
      base: its folder, which the path of its checkpoint is relative to.

    Raises:
      CheckpointError: the checkpoint is incomplete or damaged.
    """
    if is_jax(location_of(job.checkpoint.path, base)):
        from export.jax_models.front_end import JaxFrontEnd

        return JaxFrontEnd()
    from export.tensorflow_models.front_end import TensorFlowFrontEnd

    return TensorFlowFrontEnd()
