"""Opens what a recipe's training left: its checkpoint, and the model that its factory returns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from export.checkpoint.reader import Checkpoint, open_checkpoint
from export.cuts.named_graphs import load_named
from export.dumped_tables import open_dumps, with_dumps
from export.model_code import load_factory
from export.places import place_of
from export.settings import ExportJob


def open_job(job: ExportJob, base: Path) -> tuple[Checkpoint, ExportJob]:
    """Opens a recipe's checkpoint, with dumped tables, and says in the recipe how variables are found in it.

    Args:
      job: the recipe.
      base: its folder.
    Raises:
      CheckpointError: there is none, or it cannot be read.
    """
    checkpoint = open_checkpoint(place_of(job.checkpoint.path, base))
    if job.checkpoint.by is None:
        named = checkpoint.storage.kind == "TensorFlow" and checkpoint.graph is None
        part = job.checkpoint.model_copy(update={"by": "names" if named else "objects"})
        job = job.model_copy(update={"checkpoint": part})
    return with_dumps(checkpoint, open_dumps(job, base)), job


def build_root(job: ExportJob, base: Path) -> Any:
    """Returns the recipe's model: what its factory returns, or, of a checkpoint by names, a NamedGraph of it.

    Raises:
      UsageError: there is no such factory.
      NotConvertible: it raises, or returns what the checkpoint does not go with.
    """

    def load() -> Any:
        return load_factory(job.code.factory, base)()

    return load_named(job.code.factory, load) if job.checkpoint.by == "names" else load()
