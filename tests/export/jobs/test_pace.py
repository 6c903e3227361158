"""Estimates: what is sampled, and what is said of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from export.checkpoint.inventory.recognition import recognise
from export.checkpoint.inventory.specs import Statements
from export.checkpoint.reader import open_checkpoint
from export.jobs.pace import SAMPLE_BYTES, measure_pace
from export.tables.plan import Writing, plan_tables
from tests.export.checkpoint.bundles import write_bundle


def test_measure_pace_samples_the_beginning_and_extrapolates(tmp_path: Path) -> None:
    values = np.zeros((SAMPLE_BYTES // 256 + 1000, 64), np.float32)
    write_bundle(tmp_path / "ckpt", {"t": values})
    checkpoint = open_checkpoint(tmp_path)
    plan = plan_tables(checkpoint, recognise(checkpoint, Statements({"t": "t"})), tmp_path / "out")
    pace = measure_pace(plan)
    assert SAMPLE_BYTES <= pace.sample_bytes <= SAMPLE_BYTES + (1 << 20)
    assert pace.seconds is not None
    assert np.isclose(pace.seconds * pace.bytes_per_s, 2 * values.nbytes)
    assert "iB/s at which its first 64.0 MiB were read" in pace.told()
    assert not (tmp_path / "out").exists()


def test_measure_pace_of_linked_tables_is_nothing(tmp_path: Path) -> None:
    write_bundle(tmp_path / "ckpt", {"t": np.zeros((10, 4), np.float32)})
    checkpoint = open_checkpoint(tmp_path)
    inventory = recognise(checkpoint, Statements({"t": "t"}))
    pace = measure_pace(plan_tables(checkpoint, inventory, tmp_path / "out", writing={"t": Writing(link=True)}))
    assert (pace.seconds, pace.sample_bytes) == (0.0, 0)
    assert "nothing is copied" in pace.told()
