"""Opens a recipe's checkpoint and chooses its front end; no other module knows all front ends."""

from __future__ import annotations

from pathlib import Path

from export.checkpoint.reader import (
    Checkpoint,
    is_jax,
    is_torch,
    may_hold_keras_lists,
    open_checkpoint,
)
from export.front_end.interface import FrontEnd
from export.locations import location_of
from export.recipe.schema import ExportJob
from export.tables.dumped import open_dumps, with_dumps
from object_store.locations import Location


def open_job(job: ExportJob, base: Path) -> tuple[FrontEnd, ExportJob, Checkpoint]:
    """Opens a recipe's checkpoint, by the front end that understands its model.

    Args:
      job: The recipe.
      base: The folder that the paths of the recipe are relative to.

    Returns:
      The front end; the recipe, which states how variables are found in the checkpoint; and the
      checkpoint with the recipe's dumped tables.

    Raises:
      CheckpointError: The checkpoint is missing or unreadable, or lacks what the recipe requests.
      UsageError: A dump is not on this machine, or does not have the table.
    """
    front_end = front_end_of(job, base)
    checkpoint = open_checkpoint(location_of(job.checkpoint.path, base))
    job, checkpoint = front_end.find_variables(job, checkpoint)
    return front_end, job, with_dumps(checkpoint, open_dumps(job, base))


def front_end_of(job: ExportJob, base: Path) -> FrontEnd:
    """Returns the front end that understands a recipe's model: JAX's for what Orbax saved, unless
    that is a model of Keras; for PyTorch, the front end of towers that the user brings.

    Raises:
      CheckpointError: The checkpoint is incomplete or damaged.
    """
    location = location_of(job.checkpoint.path, base)
    # Front ends are imported where they are chosen: each needs the framework of its models.
    if is_torch(location):
        from export.given_towers.front_end import GivenTowersFrontEnd

        return GivenTowersFrontEnd()
    if is_jax(location) and not _holds_keras_model(location, job, base):
        from export.jax_models.front_end import JaxFrontEnd

        return JaxFrontEnd()
    from export.jax_models.keras_trainer import KerasTrainer
    from export.tensorflow_models.front_end import TensorFlowFrontEnd

    return TensorFlowFrontEnd(KerasTrainer)


def _holds_keras_model(location: Location, job: ExportJob, base: Path) -> bool:
    """Returns whether what Orbax saved of a program in JAX is a model of Keras, in lists."""
    # Lists of variables may come from any program in JAX: what the factory returns decides.
    if not may_hold_keras_lists(location):
        return False
    from export.jax_models.loading import prefer_cpus
    from export.tensorflow_models.front_end import builds_keras_model

    # The factory may import JAX.
    prefer_cpus()
    return builds_keras_model(job, base)
