"""Opens what a recipe's training left: its checkpoint, and the model that its factory returns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from export.checkpoint.reader import Checkpoint, open_checkpoint
from export.cuts.named_graphs import AVERAGE, load_named
from export.dumped_tables import open_dumps, with_dumps
from export.errors import CheckpointError, UsageError
from export.model_code import load_factory
from export.places import place_of
from export.settings import ExportJob


def open_job(job: ExportJob, base: Path) -> tuple[Checkpoint, ExportJob]:
    """Opens a recipe's checkpoint, with dumped tables, and says in the recipe how variables are found in it.

    Args:
      job: the recipe.
      base: its folder.
    Raises:
      CheckpointError: there is none, or it cannot be read, or it lacks the averages that the recipe asks for.
      UsageError: the recipe asks for averages by names, of a checkpoint by objects.
    """
    checkpoint = open_checkpoint(place_of(job.checkpoint.path, base))
    if job.checkpoint.by is None:
        named = checkpoint.storage.kind == "TensorFlow" and checkpoint.graph is None
        part = job.checkpoint.model_copy(update={"by": "names" if named else "objects"})
        job = job.model_copy(update={"checkpoint": part})
    if job.checkpoint.averages:
        _check_averages(checkpoint, job)
    return with_dumps(checkpoint, open_dumps(job, base)), job


def _check_averages(checkpoint: Checkpoint, job: ExportJob) -> None:
    if job.checkpoint.by != "names":
        raise UsageError(
            "checkpoint.averages are those that TF1 keeps by names; this checkpoint is read by objects: "
            "where Keras' optimizer kept them (use_ema), call its finalize_variable_values(model.trainable_variables) "
            "before the model is saved, and leave averages out"
        )
    if not any(key.endswith(AVERAGE) for key in checkpoint.entries):
        raise CheckpointError(
            f"checkpoint {checkpoint.prefix} has no moving averages (none of its variables is called ...{AVERAGE}), "
            "which checkpoint.averages asks for; leave it out"
        )


def build_root(job: ExportJob, base: Path) -> Any:
    """Returns the recipe's model: what its factory returns, or, of a checkpoint by names, a NamedGraph of it.

    Raises:
      UsageError: there is no such factory.
      NotConvertible: it raises, or returns what the checkpoint does not go with.
    """

    def load() -> Any:
        return load_factory(job.code.factory, base)()

    return load_named(job.code.factory, load, job.checkpoint.averages) if job.checkpoint.by == "names" else load()
