"""Finds how a recipe's variables are stored, and builds its model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from export.checkpoint.inventory.averages import find_averages
from export.checkpoint.reader import Checkpoint
from export.checkpoint.variables import Listing
from export.errors import CheckpointError
from export.graphs.loading import prefer_keras
from export.model_code.factories import factory_of
from export.recipe.schema import ExportJob
from export.tensorflow_models.frameworks.keras_saving import reset_automatic_names
from export.tensorflow_models.frameworks.named_graphs import AVERAGE, load_named
from export.tensorflow_models.model.keras_generation import generation_of_checkpoint


def find_variables(job: ExportJob, checkpoint: Checkpoint) -> tuple[ExportJob, Checkpoint]:
    """See FrontEnd.find_variables."""
    prefer_keras(generation_of_checkpoint(checkpoint))  # before TensorFlow is loaded
    if job.checkpoint.by is None:
        named = checkpoint.storage.kind == "TensorFlow" and checkpoint.graph is None
        part = job.checkpoint.model_copy(update={"by": "names" if named else "objects"})
        job = job.model_copy(update={"checkpoint": part})
    if job.checkpoint.averages:
        checkpoint = _averaged(checkpoint, job)
    return job, checkpoint


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
        factory = factory_of(job, base)
        reset_automatic_names()  # training's model was the first one of its process
        return factory()

    return (
        load_named(job.code.factory, load, job.checkpoint.averages)
        if job.checkpoint.by == "names"
        else load()
    )
