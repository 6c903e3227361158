"""Opens a recipe's checkpoint and chooses its front end; no other module knows all front ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

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
    """Returns the front end that understands a recipe's model.

    Raises:
      CheckpointError: The checkpoint is incomplete or damaged.
    """
    location = location_of(job.checkpoint.path, base)
    choice = next(choice for choice in FRONT_ENDS if choice.understands(location, job, base))
    return choice.load()


class Choice(NamedTuple):
    """A front end, and the models that it understands.

    Attributes:
      understands: Returns whether it understands the model of a checkpoint, of a recipe, in the
        recipe's folder.
      load: Imports the front end, which needs the framework of its models.
    """

    understands: Callable[[Location, ExportJob, Path], bool]
    load: Callable[[], FrontEnd]


def _load_given_towers() -> FrontEnd:
    from export.given_towers.front_end import GivenTowersFrontEnd

    return GivenTowersFrontEnd()


def _is_of_jax(location: Location, job: ExportJob, base: Path) -> bool:
    """Returns whether Orbax saved a model, unless that is one of Keras."""
    if not is_jax(location):
        return False
    # Lists of variables may come from any program in JAX: what the factory returns decides.
    if not may_hold_keras_lists(location):
        return True
    from export.jax_models.loading import prefer_cpus
    from export.tensorflow_models.front_end import builds_keras_model

    # The factory may import JAX.
    prefer_cpus()
    return not builds_keras_model(job, base)


def _load_jax() -> FrontEnd:
    from export.jax_models.front_end import JaxFrontEnd

    return JaxFrontEnd()


def _load_tensorflow() -> FrontEnd:
    from export.jax_models.keras_trainer import KerasTrainer
    from export.tensorflow_models.front_end import TensorFlowFrontEnd

    return TensorFlowFrontEnd(KerasTrainer)


FRONT_ENDS = (
    Choice(lambda location, *_recipe: is_torch(location), _load_given_towers),
    Choice(_is_of_jax, _load_jax),
    Choice(lambda *_recipe: True, _load_tensorflow),
)
"""The first one that understands a recipe's model exports it."""
