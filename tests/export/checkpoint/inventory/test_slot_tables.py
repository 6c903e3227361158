"""Slot variables kept for a warm restart: tables of their own, laid out as theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from export.checkpoint.inventory.recognition import recognise
from export.checkpoint.inventory.slot_tables import with_slots
from export.checkpoint.reader import open_checkpoint
from tests.export.checkpoint.bundles import write_bundle

TABLE = np.ones((8, 3), np.float32)


def test_with_slots_adds_those_of_the_tables_shape_under_their_names(tmp_path: Path) -> None:
    other: dict[str, Any] = {
        "beta1_power": np.array(0.9, np.float32),
        "dense/kernel": TABLE,
        "dense/kernel/Adam": TABLE,
    }
    slots: dict[str, Any] = {"items/embeddings/Adam/m": TABLE, "items/embeddings/Adam/v": TABLE.astype(np.float16)}
    write_bundle(tmp_path / "c", {"items/embeddings": TABLE, **slots, **other})
    checkpoint = open_checkpoint(tmp_path)
    inventory = recognise(checkpoint)
    kept = with_slots(checkpoint, inventory, ["items"])
    assert [(table.name, table.dtype, table.slot_of) for table in kept.tables] == [
        ("items", "float32", ""),
        ("items.slot.Adam.m", "float32", "items"),
        ("items.slot.Adam.v", "float16", "items"),
    ]
    assert {slot.key for slot in kept.slots} == {"beta1_power", "dense/kernel/Adam"}
    assert kept.slot_bytes == inventory.slot_bytes - TABLE.nbytes * 3 // 2
