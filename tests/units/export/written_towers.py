"""Towers as an export writes them."""

from __future__ import annotations

from pathlib import Path

from bundle.format.manifest import Tower
from bundle.storage.staging import Staging
from export.checkpoint.reader import open_checkpoint
from export.recipe.schema import ExportJob
from export.tensorflow_models.front_end import TensorFlowModel
from export.tensorflow_models.model.tracing import TracedModel
from export.towers.files import TowerFiles

Written = tuple[Path, dict[str, Tower]]
"""The directory of a bundle, and its towers."""


def write_towers(model: TracedModel, job: ExportJob, prefix: Path, root: Path) -> Written:
    """Writes every tower."""
    with Staging(root, "written", 1) as stage:
        original = TensorFlowModel(job, root, open_checkpoint(prefix), model)
        files = TowerFiles(stage, original)
        return stage.directory, {
            tower.spec.name: files.write(tower, (), job) for tower in model.towers
        }
