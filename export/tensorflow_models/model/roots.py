"""Opens a recipe's checkpoint and builds its model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from export.checkpoint.inventory.averages import find_averages
from export.checkpoint.reader import Checkpoint, open_checkpoint
from export.checkpoint.variables import Listing
from export.errors import CheckpointError
from export.graphs.loading import prefer_keras
from export.locations import location_of
from export.recipe.schema import ExportJob
from export.tables.dumped import open_dumps, with_dumps
from export.tensorflow_models.frameworks.keras_saving import reset_automatic_names
from export.tensorflow_models.frameworks.named_graphs import AVERAGE, load_named
from export.tensorflow_models.model.code import load_factory
from export.tensorflow_models.model.keras_generation import generation_of_checkpoint


def open_job(job: ExportJob, base: Path) -> tuple[Checkpoint, ExportJob]:
    """Opens a recipe's checkpoint with its dumped tables; the recipe returned states how variables
    are found in it.

    Args:
      job: the recipe.
      base: its folder.
    Raises:
      CheckpointError: it is missing or unreadable, or lacks the averages that the recipe requests.
    """
    checkpoint = open_checkpoint(location_of(job.checkpoint.path, base))
    prefer_keras(generation_of_checkpoint(checkpoint.graph))  # before TensorFlow is loaded
    if job.checkpoint.by is None:
        named = checkpoint.storage.kind == "TensorFlow" and checkpoint.graph is None
        part = job.checkpoint.model_copy(update={"by": "names" if named else "objects"})
        job = job.model_copy(update={"checkpoint": part})
    if job.checkpoint.averages:
        checkpoint = _averaged(checkpoint, job)
    return with_dumps(checkpoint, open_dumps(job, base)), job


def _averaged(checkpoint: Checkpoint, job: ExportJob) -> Checkpoint:
    """Returns the checkpoint whose variables are read as their moving averages."""
    by_names = job.checkpoint.by == "names"
    averages = {} if by_names else find_averages(checkpoint)
    if not averages and not (by_names and any(key.endswith(AVERAGE) for key in checkpoint.entries)):
        which = (
            f"none of its variables is called ...{AVERAGE}"
            if by_names
            else "no optimizer in it keeps some"
        )
        raise CheckpointError(
            f"checkpoint {checkpoint.prefix} has no moving averages ({which}), which "
            "checkpoint.averages requests; leave it out"
        )
    storage = replace(checkpoint.storage, averages=averages)
    return Checkpoint(
        checkpoint.prefix,
        Listing(checkpoint.fingerprint, checkpoint.entries, storage),
        checkpoint.name,
    )


def build_root(job: ExportJob, base: Path) -> Any:
    """Returns what the recipe's factory returns; as a NamedGraph where the checkpoint is read by
    names.

    Raises:
      UsageError: there is no such factory.
      NotConvertible: it raises, or its result does not fit the kind of checkpoint.
    """

    def load() -> Any:
        factory = load_factory(job.code.factory, base)
        reset_automatic_names()  # training's model was the first one of its process
        return factory()

    return (
        load_named(job.code.factory, load, job.checkpoint.averages)
        if job.checkpoint.by == "names"
        else load()
    )
