"""Towers as an export writes them -> what the parity check finds of them."""

from __future__ import annotations

from pathlib import Path

from bundle.format.manifest import Tower
from bundle.storage.staging import Staging
from export.checkpoint.reader import open_checkpoint
from export.model.tracing import TracedModel
from export.recipe.schema import ExportJob
from export.towers.files import TowerFiles
from export.verify.parity import check_tower, feature_values
from export.verify.reference_inputs import Reference
from export.verify.reference_model import Results

Written = tuple[Path, dict[str, Tower]]
"""The directory of a bundle, and its towers."""


def write_towers(model: TracedModel, job: ExportJob, prefix: Path, root: Path) -> Written:
    """Writes every tower."""
    with Staging(root, "written", 1) as stage:
        files = TowerFiles(stage, model.root, open_checkpoint(prefix), "model")
        return stage.directory, {tower.spec.name: files.write(tower, (), job) for tower in model.towers}


def check_towers(reference: Reference, written: Written, expected: Results) -> dict[str, Tower]:
    """Compares towers with the reference model."""
    values, (root, towers) = feature_values(reference, reference.features), written
    return {name: check_tower(reference, root, name, each, values, expected[name]) for name, each in towers.items()}
