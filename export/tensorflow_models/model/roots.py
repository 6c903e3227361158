"""Finds how a recipe's variables are stored, and builds its model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from export.checkpoint.inventory.optimizer_state import find_averages
from export.checkpoint.reader import Checkpoint
from export.checkpoint.variables import Listing
from export.errors import CheckpointError
from export.graphs.loading import prefer_keras
from export.model_code.factories import factory_of
from export.recipe.schema import ExportJob
from export.tensorflow_models.frameworks.keras_graphs import load_model
from export.tensorflow_models.frameworks.keras_saving import is_keras_model, reset_automatic_names
from export.tensorflow_models.frameworks.named_graphs import AVERAGE, load_named
from export.tensorflow_models.model.keras_generation import generation_of_checkpoint


def find_variables(job: ExportJob, checkpoint: Checkpoint) -> tuple[ExportJob, Checkpoint]:
    """See FrontEnd.find_variables."""
    prefer_keras(generation_of_checkpoint(checkpoint))  # before TensorFlow is loaded
    if job.checkpoint.by is None:
        # Without an object graph, TensorFlow's checkpoints are those of a Saver of TF1.
        is_named = checkpoint.storage.kind == "TensorFlow" and checkpoint.graph is None
        kind = "names" if is_named else "objects"
        section = job.checkpoint.model_copy(update={"by": kind})
        job = job.model_copy(update={"checkpoint": section})
    if job.checkpoint.averages:
        checkpoint = _averaged(checkpoint, job)
    return job, checkpoint


def _averaged(checkpoint: Checkpoint, job: ExportJob) -> Checkpoint:
    """Returns the checkpoint whose variables are read as their moving averages."""
    averages: dict[str, str] = {}
    if job.checkpoint.by == "names":
        # A NamedGraph finds the average of a variable by its name.
        has_averages = any(key.endswith(AVERAGE) for key in checkpoint.entries)
        reason = f"none of its variables is called ...{AVERAGE}"
    else:
        averages = find_averages(checkpoint)
        has_averages = bool(averages)
        reason = "no optimizer in it keeps some"
    if not has_averages:
        raise CheckpointError(
            f"checkpoint {checkpoint.prefix} has no moving averages ({reason}), which "
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
    names, and as a KerasGraph where the code switches eager execution off.

    Raises:
      UsageError: There is no such factory.
      NotConvertible: The factory raises, or its result does not fit the kind of checkpoint.
    """

    def load() -> Callable[[], Any]:
        factory = factory_of(job, base)

        def build() -> Any:
            # Training's model was the first one of its process.
            reset_automatic_names()
            return _by_attributes(factory())

        return build

    if job.checkpoint.by != "names":
        return load_model(job.code.factory, load)

    return load_named(job.code.factory, load, job.checkpoint.averages)


def _by_attributes(result: Any) -> Any:
    """Returns what a factory returned; a dict or named tuple of models as an object, whose
    attributes towers call.
    """
    models = getattr(result, "_asdict", lambda: result)()
    if isinstance(models, Mapping) and any(map(is_keras_model, models.values())):
        return SimpleNamespace(**models)
    return result
