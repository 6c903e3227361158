from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.checkpoint.inventory.recognition import recognise
from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError
from export.tables.plan import plan_tables
from tests.export.checkpoint.tensor_bundles import write_bundle

TABLE = np.arange(222, dtype=np.float32).reshape(37, 6)


@pytest.mark.parametrize(
    ("boxes", "told"),
    [
        ([[(0, 10), (0, -1)], [(11, 26), (0, -1)]], "row 10 its slices hold nothing"),
        ([[(0, -1), (0, 5)]], "row 0 its slices hold columns 0 to 5"),
        (
            [[(0, 30), (0, -1)], [(29, 8), (0, -1)]],
            "row 29 its slices hold columns 0 to 6, columns 0 to 6",
        ),
        (
            [[(0, -1), (0, 2)], [(0, 9), (2, 4)], [(9, 28), (3, 3)]],
            "row 9 its slices hold columns 0 to 2, columns 3 to 6",
        ),
    ],
)
def test_table_whose_slices_overlap_or_leave_a_gap_is_refused_with_the_place(
    tmp_path: Path, boxes: Any, told: str
) -> None:
    write_bundle(tmp_path / "c", {"t/embeddings": TABLE}, boxes={"t/embeddings": boxes})
    checkpoint = open_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=f"at {told}, where columns 0 to 6 are needed"):
        plan_tables(checkpoint, recognise(checkpoint), tmp_path / "out")
