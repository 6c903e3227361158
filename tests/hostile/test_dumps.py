"""Dumps that are damaged or claim much: rows of the sizes that their files have, or a typed error,
in bounded time.
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.reader import open_checkpoint
from export.cli.inspect import inventory_json, inventory_table
from export.errors import CheckpointError, DestinationError
from export.jobs.space import check_plan_fits
from export.tables.plan import plan_tables
from tests.hostile.damage import case_files, trial
from tests.hostile.ordeal import deadline, endure
from tests.units.export.checkpoint.dump_files import collection_dump, head, hugectr_dump, sok_dump

IDS = np.arange(40, dtype=np.int64) * 3
ROWS = np.ones((40, 4), np.float32)
TRIALS = 200


@pytest.mark.parametrize("kind", ["SOK", "HugeCTR", "collection"])
def test_damaged_dump_gives_values_or_a_typed_error(tmp_path: Path, kind: str) -> None:
    if kind == "SOK":
        sok_dump(tmp_path, "t", IDS, ROWS, m=ROWS)
    elif kind == "HugeCTR":
        hugectr_dump(tmp_path / "t", IDS, ROWS, np.zeros(40, np.uint64))
    else:
        collection_dump(tmp_path, [(IDS, ROWS), (IDS[:3], ROWS[:3])])
    assert endure(tmp_path) == ""
    files = case_files(tmp_path)
    for seed in range(TRIALS):
        with TemporaryDirectory() as directory:
            trial(seed, files, Path(directory))


def test_dump_of_a_terabyte_is_planned_without_being_read(tmp_path: Path) -> None:
    for name, kind, dtype, size in (("t-key", 0, 1, 8 << 34), ("t-weight", 1, 5, 64 << 34)):
        (tmp_path / name).write_bytes(head(kind, dtype))
        os.truncate(tmp_path / name, 296 + size)
    with deadline():
        checkpoint = open_checkpoint(tmp_path)
        (table,) = recognize(checkpoint).tables
        assert (table.rows, table.dim) == (1 << 34, 16)
        plan = plan_tables(checkpoint, recognize(checkpoint), tmp_path / "out")
    with pytest.raises(
        DestinationError, match=r"the tables need 1\.\d TiB"
    ):  # vectors, keys aside, and their index
        check_plan_fits(plan, tmp_path)


@pytest.mark.parametrize("name", ["a[b]*?", "\x1b[2J", "line\nbreak", "-key", "x" * 200])
def test_names_of_files_in_a_dump_are_only_names(tmp_path: Path, name: str) -> None:
    sok_dump(tmp_path, name, IDS, ROWS, m=ROWS)
    inventory = recognize(open_checkpoint(tmp_path))
    (table,) = inventory.tables
    assert table.name == name
    assert inventory_json(inventory)["tables"][name]["rows"] == 40
    assert inventory_table(inventory)


def test_name_that_is_no_text_is_rejected(tmp_path: Path) -> None:
    sok_dump(tmp_path, os.fsdecode(b"\xff\xfe"), IDS, ROWS)
    with pytest.raises(CheckpointError, match="no UTF-8 text; rename it"):
        open_checkpoint(tmp_path)
