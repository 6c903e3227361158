"""Tables that are linked instead of copied: what can be, what the page says of it, what stands in
the way.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from bundle.format import manifest
from bundle.tables.reader import TableReader
from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.inventory.specs import StatedTable, Statements
from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError, DestinationError, VerificationFailed
from export.jobs.destinations import open_destination
from export.tables.links import link_file, link_files
from export.tables.plan import ExportPlan, WriteOptions, plan_tables
from export.tables.segments import manifest_table
from export.verify.table_rows import verify_tables
from tests.units.export.checkpoint.tensor_bundles import write_bundle
from tests.units.export.tables.test_segments import CUTS as COPIED_CUTS
from tests.units.export.tables.test_segments import VALUES, damage

CUTS = COPIED_CUTS | {"mod": [[(0, 51), (0, -1)], [(51, 50), (0, -1)]]}


def planned(
    directory: Path, cut: str = "whole", values: Any = VALUES, dtype: str | None = None
) -> ExportPlan:
    boxes = {"t": CUTS[cut]} if CUTS[cut] else None
    write_bundle(directory / "ckpt", {"flag": np.zeros(3, bool), "t": values}, boxes=boxes, files=2)
    checkpoint = open_checkpoint(directory)
    statements = Statements({"t": "t"}, ("t",) if cut == "mod" else ())
    options = WriteOptions(link=True, dtype=dtype)
    return plan_tables(
        checkpoint,
        recognize(checkpoint, statements),
        directory / "out",
        write_options={"t": options},
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
    assert [segment.rows for segment in tables["t"].segments] == (
        [101] if cut == "whole" else [33, 1, 67]
    )
    assert all(segment.blocks == () for segment in tables["t"].segments)
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


def test_link_files_links_the_file_that_a_symbolic_link_leads_to(tmp_path: Path) -> None:
    """Directories of snapshots hold symbolic links to the data files."""
    planned(tmp_path / "snapshot")
    real = tmp_path / "real"
    (tmp_path / "snapshot").rename(real)
    (tmp_path / "snapshot").mkdir()
    for file in real.iterdir():
        (tmp_path / "snapshot" / file.name).symlink_to(file)
    checkpoint = open_checkpoint(tmp_path / "snapshot")
    plan = plan_tables(
        checkpoint,
        recognize(checkpoint, Statements({"t": "t"})),
        tmp_path / "out",
        write_options={"t": WriteOptions(link=True)},
    )
    tables = linked(tmp_path, plan)
    assert not any(path.is_symlink() for path in (tmp_path / "out").rglob("*"))
    assert verify_tables(checkpoint, tmp_path / "out", tables, None)["t"].rows_compared == 101


def test_linked_slice_that_is_damaged_is_found_by_a_full_comparison(tmp_path: Path) -> None:
    tables = linked(tmp_path, planned(tmp_path, "rows"))
    segment = tables["t"].segments[0]
    damage(tmp_path / "out", segment.offset + 5, segment.file)
    with pytest.raises(VerificationFailed, match="does not match its digests"):
        verify_tables(open_checkpoint(tmp_path), tmp_path / "out", tables, None)


@pytest.mark.parametrize(
    ("cut", "dtype", "reason"),
    [
        ("columns", None, "cut by columns"),
        ("mod", None, "do not lie in order"),
        ("whole", "float16", "converted from float32 to float16"),
    ],
)
def test_plan_tables_table_that_cannot_be_linked_is_copied_with_the_reason(
    tmp_path: Path, cut: str, dtype: str | None, reason: str
) -> None:
    plan = planned(tmp_path, cut, dtype=dtype)
    assert len(plan.tasks) == 1
    assert reason in plan.to_json()["tables"]["t"]["note"]
    assert plan.links == {}


@pytest.mark.parametrize("part", [{"rows": 100}, {"dim": 5}])
def test_plan_tables_table_without_its_padding_is_copied_not_linked(
    tmp_path: Path, part: dict[str, int]
) -> None:
    write_bundle(tmp_path / "ckpt", {"t": VALUES})
    checkpoint = open_checkpoint(tmp_path)
    statements = Statements(layouts={"t": StatedTable(key="t", kind="plain", **part)})
    options = {"t": WriteOptions(link=True)}
    plan = plan_tables(
        checkpoint, recognize(checkpoint, statements), tmp_path / "out", write_options=options
    )
    assert plan.links == {}
    assert "padding is cut off" in plan.to_json()["tables"]["t"]["note"]


def test_link_files_data_file_that_is_gone_is_named(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    for file in tmp_path.glob("*.data*"):
        file.unlink()
    with pytest.raises(CheckpointError, match=r"ckpt\.data.* is gone"):
        linked(tmp_path, plan)


def test_reject_links_to_another_filesystem_is_a_destination_error(tmp_path: Path) -> None:
    elsewhere = Path("/dev/shm")
    if elsewhere.stat().st_dev == tmp_path.stat().st_dev:
        elsewhere = Path("/proc")
    plan = planned(tmp_path)
    open_destination(str(tmp_path / "not" / "yet"), tmp_path, tmp_path).reject_links(plan)
    with pytest.raises(DestinationError, match="different filesystems"):
        open_destination(str(elsewhere / "rowcast-none"), tmp_path, tmp_path).reject_links(plan)


def test_link_file_names_the_reason_and_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    data.write_bytes(b"x")
    link = tmp_path / "out" / "links" / "0"

    def rejected(number: int) -> str:
        def fail(_source: str, _link: Path) -> None:
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as patch:
            patch.setattr(os, "link", fail)
            with pytest.raises(DestinationError) as rejection:
                link_file(str(data), link, "copy it instead")
        return str(rejection.value)

    message = f"data file {data} cannot be linked as {link}: "
    assert rejected(errno.EXDEV) == (f"{message}they are on different filesystems; copy it instead")
    assert rejected(errno.EMLINK) == (
        f"{message}it has as many links as the filesystem allows; copy it instead"
    )
    assert rejected(errno.EIO) == f"{message}{os.strerror(errno.EIO)}; copy it instead"
    with pytest.raises(DestinationError) as rejection:
        link_file("s3://bucket/data", link, "copy it instead")
    assert str(rejection.value) == (
        "data file s3://bucket/data cannot be linked: it lies in an object store; copy it instead"
    )
    link_file(str(data), link, "copy it instead")
    assert link.samefile(data)


def test_plan_tables_linked_slices_lie_where_the_checkpoint_has_them(tmp_path: Path) -> None:
    plan = planned(tmp_path, "rows")
    (table,) = plan.tables
    page = manifest_table(table, (), plan.links)
    entry = open_checkpoint(tmp_path).entries["t"]
    parts = sorted(entry.slices, key=lambda part: part.starts[0])
    assert [
        (segment.offset, segment.first_row, segment.rows, segment.crc32c)
        for segment in page.segments
    ] == [(part.offset, part.starts[0], part.shape[0], part.crc32c) for part in parts]
    assert {segment.file for segment in page.segments} == set(plan.links.values())
