from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from bundle.storage.staging import Staging
from export.checkpoint.inventory.recognition import recognise
from export.checkpoint.inventory.specs import Statements
from export.checkpoint.reader import open_checkpoint
from export.jobs.table_steps import copy_tables
from export.recipe.settings import ExportSettings
from export.tables.plan import plan_tables
from tests.export.checkpoint.bundles import write_bundle


def test_tables_of_a_checkpoint_with_another_fingerprint_are_copied_again(tmp_path: Path) -> None:
    """As a checkpoint that was saved again to the same place, in a format whose files are not watched one by one."""
    write_bundle(tmp_path / "c", {"t": np.ones((5, 2), np.float32)})
    checkpoint, shards = open_checkpoint(tmp_path / "c"), []
    inventory = recognise(checkpoint, Statements({"t": "t"}))
    for fingerprint in (inventory.fingerprint, inventory.fingerprint, "another"):
        with Staging(tmp_path / "root", "m", 1) as stage:
            plan = plan_tables(checkpoint, replace(inventory, fingerprint=fingerprint), stage.directory)
            copy_tables(plan, stage, ExportSettings(), lambda _: None)
            (shard,) = (stage.directory / "tables").rglob("*.bin")
            shards.append(shard.stat().st_ino)
    assert shards[0] == shards[1] != shards[2]
