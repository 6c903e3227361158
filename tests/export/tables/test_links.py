"""Tables that are linked instead of copied: what can be, what the page says of it, what stands in the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from bundle.format import manifest
from bundle.tables.reader import TableReader
from export.checkpoint.inventory.recognition import recognise
from export.checkpoint.inventory.specs import Statements
from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError, DestinationError, VerificationFailed
from export.jobs.destinations import open_destination
from export.tables.links import link_files
from export.tables.plan import ExportPlan, Writing, plan_tables
from export.tables.shards import manifest_table
from export.verify.table_rows import verify_tables
from tests.export.checkpoint.bundles import write_bundle
from tests.export.tables.test_shards import CUTS as COPIED_CUTS
from tests.export.tables.test_shards import VALUES, damage

CUTS = COPIED_CUTS | {"mod": [[(0, 51), (0, -1)], [(51, 50), (0, -1)]]}


def planned(
    directory: Path, cut: str = "whole", values: Any = VALUES, dtype: str | None = None
) -> ExportPlan:
    boxes = {"t": CUTS[cut]} if CUTS[cut] else None
    write_bundle(directory / "ckpt", {"flag": np.zeros(3, bool), "t": values}, boxes=boxes, files=2)
    checkpoint = open_checkpoint(directory)
    said = Statements({"t": "t"}, ("t",) if cut == "mod" else ())
    way = Writing(link=True, dtype=dtype)
    return plan_tables(
        checkpoint, recognise(checkpoint, said), directory / "out", writing={"t": way}
    )


def linked(directory: Path, plan: ExportPlan) -> dict[str, manifest.Table]:
    (directory / "out").mkdir()
    link_files(plan, directory / "out")
    return {table.spec.name: manifest_table(table, (), plan.links) for table in plan.tables}


@pytest.mark.parametrize("cut", ["whole", "rows"])
@pytest.mark.parametrize("dtype", ["f4", "f2", ml_dtypes.bfloat16])
def test_linked_table_reads_as_the_checkpoint_without_a_byte_written(
    tmp_path: Path, cut: str, dtype: Any
) -> None:
    values = VALUES.astype(dtype)
    plan = planned(tmp_path, cut, values)
    assert (plan.tasks, plan.bytes, plan.read_bytes, plan.linked_bytes) == ((), 0, 0, values.nbytes)
    tables = linked(tmp_path, plan)
    assert [shard.rows for shard in tables["t"].shards] == (
        [101] if cut == "whole" else [33, 1, 67]
    )
    assert all(shard.blocks == () for shard in tables["t"].shards)
    rows = np.array([100, 0, 33, 33, 34, 32, 7])
    read = TableReader(tmp_path / "out", tables["t"]).gather(rows)
    assert np.array_equal(read, values.astype(np.float32)[rows])
    assert (
        verify_tables(open_checkpoint(tmp_path), tmp_path / "out", tables, None)["t"].rows_compared
        == 101
    )
    for file in tmp_path.glob("ckpt*"):
        file.unlink()  # the links outlive the checkpoint
    assert np.array_equal(
        TableReader(tmp_path / "out", tables["t"]).gather(np.arange(101)), values.astype(np.float32)
    )


def test_link_files_again_keeps_the_links_and_replaces_what_is_another_file(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    linked(tmp_path, plan)
    link = tmp_path / "out" / next(iter(plan.links.values()))
    link.unlink()
    link.write_text("of a run on another checkpoint")
    for _ in range(2):
        link_files(plan, tmp_path / "out")
        assert link.samefile(next(iter(plan.links)))


def test_linked_slice_that_is_damaged_is_found_by_a_full_comparison(tmp_path: Path) -> None:
    tables = linked(tmp_path, planned(tmp_path, "rows"))
    shard = tables["t"].shards[0]
    damage(tmp_path / "out", shard.offset + 5, shard.file)
    with pytest.raises(VerificationFailed, match="does not match its digests"):
        verify_tables(open_checkpoint(tmp_path), tmp_path / "out", tables, None)


@pytest.mark.parametrize(
    ("cut", "dtype", "why"),
    [
        ("columns", None, "cut by columns"),
        ("mod", None, "do not lie in order"),
        ("whole", "float16", "converted from float32 to float16"),
    ],
)
def test_plan_tables_what_cannot_be_linked_is_copied_and_says_why(
    tmp_path: Path, cut: str, dtype: str | None, why: str
) -> None:
    plan = planned(tmp_path, cut, dtype=dtype)
    assert len(plan.tasks) == 1
    assert why in plan.to_json()["tables"]["t"]["note"]
    assert plan.links == {}


def test_link_files_data_file_that_is_gone_is_named(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    for file in tmp_path.glob("*.data*"):
        file.unlink()
    with pytest.raises(CheckpointError, match=r"ckpt\.data.* is gone"):
        linked(tmp_path, plan)


def test_refuse_links_to_another_filesystem_is_told_by_the_plan(tmp_path: Path) -> None:
    elsewhere = Path("/dev/shm")
    if elsewhere.stat().st_dev == tmp_path.stat().st_dev:
        elsewhere = Path("/proc")
    plan = planned(tmp_path)
    open_destination(str(tmp_path / "not" / "yet"), tmp_path, tmp_path).refuse_links(plan)
    with pytest.raises(DestinationError, match="different filesystems"):
        open_destination(str(elsewhere / "rowcast-none"), tmp_path, tmp_path).refuse_links(plan)
