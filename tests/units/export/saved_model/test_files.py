from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.storage.staging import Staging
from export.checkpoint.formats import object_graph as objectgraph
from export.checkpoint.reader import Checkpoint, open_checkpoint
from export.errors import CheckpointError, DestinationError, NotConvertible
from export.jobs.table_steps import TaskRun
from export.recipe.settings import ExportSettings
from export.saved_model import files as inline_files
from export.saved_model.files import (
    VariablesPlan,
    link_files,
    plan_variables,
    write_variables,
)
from export.tables.plan import BUDGET_BYTES
from export.tables.segments import carry_out, check_sources
from tests.units.export.checkpoint.tensor_bundles import Box, write_bundle

Values = np.ndarray[Any, Any]
TABLE = np.random.default_rng(3).standard_normal((40, 6)).astype(np.float32)
GRAPH = b"an object graph"
ROWS: list[Box] = [[(0, 7), (0, 6)], [(7, 13), (0, 6)], [(20, 20), (0, 6)]]
SHUFFLED: list[Box] = [ROWS[2], ROWS[0], ROWS[1]]
GRID: list[Box] = [[(0, 40), (0, 2)], [(0, 40), (2, 4)]]


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline_files, "SEGMENT_BYTES", 100)


def checkpoint_of(
    directory: Path, table: Values, boxes: list[Box] | None = None, files: int = 1
) -> Checkpoint:
    variables = {
        "big": table,
        "bias": np.arange(3, dtype=np.int64),
        "scale": np.array(0.5, np.float32),
    }
    write_bundle(
        directory / "ckpt-1", variables, boxes={"big": boxes} if boxes else None, files=files
    )
    return open_checkpoint(directory / "ckpt-1")


def planned(
    checkpoint: Checkpoint, directory: Path, link: bool, check: bool = False
) -> VariablesPlan:
    (directory / "sm" / "variables").mkdir(parents=True, exist_ok=True)
    return plan_variables(
        directory / "sm", {"table_0": checkpoint.entries["big"]}, BUDGET_BYTES, link, check
    )


def carried_out(plan: VariablesPlan, checkpoint: Checkpoint) -> Checkpoint:
    link_files(plan)
    plan.written_file.touch()
    receipts = [carry_out(task) for task in plan.tasks]
    check_sources(plan.sources, receipts)
    write_variables(plan, checkpoint, {"weight_0": "bias", "weight_1": "scale"}, GRAPH, receipts)
    return open_checkpoint(plan.prefix)


@pytest.mark.parametrize("link", [False, True])
@pytest.mark.parametrize(
    ("boxes", "files"), [(None, 1), (ROWS, 1), (ROWS, 3), (SHUFFLED, 2), (GRID, 1)]
)
def test_variables_of_any_slices_read_back(
    tmp_path: Path, boxes: list[Box], files: int, link: bool
) -> None:
    checkpoint = checkpoint_of(tmp_path, TABLE, boxes, files)
    plan = planned(checkpoint, tmp_path, link)
    written = carried_out(plan, checkpoint)
    assert set(written.entries) == {"table_0", "weight_0", "weight_1", objectgraph.KEY}
    assert written.read_all("table_0").tobytes() == TABLE.tobytes()
    assert written.read_all("weight_0").tolist() == [0, 1, 2]
    assert written.read_all("weight_1").tolist() == 0.5
    assert written.read_string(objectgraph.KEY) == GRAPH
    linked = [path.stat().st_nlink for path in sorted(plan.prefix.parent.glob("*.data-*"))]
    assert linked == [2] * (len(linked) - 1) + [1]
    assert bool(plan.links) is link


@pytest.mark.parametrize(
    ("boxes", "files", "link", "load_bytes"),
    [
        (None, 1, False, 40 * 24),
        (ROWS, 3, False, 40 * 24),
        (ROWS, 3, True, 40 * 24 + 20 * 24),
        (GRID, 1, False, 40 * 24),
        (GRID, 1, True, 40 * 24 + 40 * 16),
    ],
)
def test_loading_holds_all_variables_and_the_largest_slice_twice(
    tmp_path: Path, boxes: list[Box] | None, files: int, link: bool, load_bytes: int
) -> None:
    plan = planned(checkpoint_of(tmp_path, TABLE, boxes, files), tmp_path, link)
    assert plan.load_bytes == load_bytes


def test_variables_are_linked_to_the_file_that_a_symbolic_link_leads_to(tmp_path: Path) -> None:
    checkpoint_of(tmp_path / "real", TABLE)
    (tmp_path / "snapshot").mkdir()
    for file in (tmp_path / "real").iterdir():
        (tmp_path / "snapshot" / file.name).symlink_to(file)
    checkpoint = open_checkpoint(tmp_path / "snapshot")
    written = carried_out(planned(checkpoint, tmp_path, link=True), checkpoint)
    assert not any(path.is_symlink() for path in (tmp_path / "sm").rglob("*"))
    assert written.read_all("table_0").tobytes() == TABLE.tobytes()


@pytest.mark.parametrize("link", [False, True])
@pytest.mark.parametrize("boxes", [None, ROWS, GRID])
def test_flipped_byte_is_found_while_it_is_read(
    tmp_path: Path, boxes: list[Box] | None, link: bool
) -> None:
    checkpoint = checkpoint_of(tmp_path, TABLE, boxes)
    plan = planned(checkpoint, tmp_path, link, check=True)
    part = checkpoint.entries["big"].slices[-1]
    before = os.stat(part.file)
    with Path(part.file).open("r+b") as file:
        file.seek(part.offset + 50)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(part.file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(CheckpointError, match="do not match their checksum"):
        carried_out(plan, checkpoint)


def test_float16_that_would_stay_in_slices_is_rejected_with_the_cure(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(tmp_path, TABLE.astype(np.float16), ROWS, 2)
    with pytest.raises(
        NotConvertible,
        match=r'float16 in 3 slices, .* set output\.tables = "inline", which joins them',
    ):
        planned(checkpoint, tmp_path, link=True)


def test_link_to_a_file_that_is_gone_or_in_a_store_is_rejected_with_the_reason(
    tmp_path: Path,
) -> None:
    plan = planned(checkpoint_of(tmp_path, TABLE), tmp_path, link=True)
    ((link, source),) = plan.links.items()
    link.parent.mkdir(exist_ok=True)
    Path(source).unlink()
    with pytest.raises(CheckpointError, match="is gone; did its training job delete"):
        link_files(plan)
    in_store = replace(plan, links={link: "s3://bucket/ckpt-1.data-00000-of-00001"})
    with pytest.raises(DestinationError, match=r"lies in an object store; set output\.tables"):
        link_files(in_store)


def test_link_into_another_filesystem_is_rejected_with_the_cure(tmp_path: Path) -> None:
    filesystem = Path("/dev/shm")
    if not filesystem.is_dir() or filesystem.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("one filesystem only")
    checkpoint = checkpoint_of(tmp_path, TABLE)
    plan = plan_variables(
        filesystem / f"rowcast-{os.getpid()}",
        {"table_0": checkpoint.entries["big"]},
        BUDGET_BYTES,
        link=True,
    )
    with pytest.raises(
        DestinationError,
        match=r'different filesystems; set output\.tables = "inline", which copies',
    ):
        link_files(plan)


class Run:
    """One run that copies a variable in tasks of a few rows, and is then stopped."""

    def __init__(self, checkpoint: Checkpoint, root: Path) -> None:
        with Staging(root, "m", 1) as stage:
            entries = {"table_0": checkpoint.entries["big"]}
            self.plan = plan_variables(stage.directory, entries, BUDGET_BYTES, link=False)
            self.plan.written_file.parent.mkdir(exist_ok=True)
            with self.plan.written_file.open("ab") as file:
                file.truncate(self.plan.end)
            work = TaskRun(stage, ExportSettings(workers=1), [], lambda _: None)
            work.run_checked(self.plan.tasks, self.plan.sources)
        self.values = self.plan.written_file.read_bytes()


def test_ranges_that_an_earlier_run_filled_are_copied_again_only_where_they_are_damaged(
    tmp_path: Path,
) -> None:
    checkpoint = checkpoint_of(tmp_path, TABLE)
    first = Run(checkpoint, tmp_path / "out")
    assert len(first.plan.tasks) == 10
    assert first.values == TABLE.tobytes()
    with first.plan.written_file.open("r+b") as file:
        file.seek(2 * 96)  # the third task's
        file.write(b"damaged!")

    # The rows of the checkpoint get other values, which show what is read now.
    (part,) = checkpoint.entries["big"].slices
    changed = (TABLE + 1).tobytes()
    before = os.stat(part.file)
    with Path(part.file).open("r+b") as file:
        file.seek(part.offset)
        file.write(changed)
    os.utime(part.file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(CheckpointError, match="do not match their checksum"):
        Run(checkpoint, tmp_path / "out")
    expected = TABLE.tobytes()
    assert (
        first.plan.written_file.read_bytes() == expected[:192] + changed[192:288] + expected[288:]
    )

    # What did not match its checksum is copied again, though the range holds what was written.
    with Path(part.file).open("r+b") as file:
        file.seek(part.offset)
        file.write(expected)
    os.utime(part.file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert Run(checkpoint, tmp_path / "out").values == expected


@pytest.mark.parametrize("shape", [(240,), (40, 3, 2), (40, 6)])
def test_variable_of_any_number_of_axes_is_copied(tmp_path: Path, shape: tuple[int, ...]) -> None:
    values = TABLE.astype(np.float64).reshape(shape)
    checkpoint = checkpoint_of(tmp_path, values)
    written = carried_out(planned(checkpoint, tmp_path, link=False), checkpoint)
    assert written.read_all("table_0").tobytes() == values.tobytes()
    assert written.entries["table_0"].whole


def test_variable_that_is_cut_along_its_third_axis_is_rejected(tmp_path: Path) -> None:
    halves: list[Box] = [[(0, 40), (0, 3), (0, 1)], [(0, 40), (0, 3), (1, 1)]]
    checkpoint = checkpoint_of(tmp_path, TABLE.reshape(40, 3, 2), halves)
    with pytest.raises(NotConvertible, match="'big' is cut along its third axis or a later one"):
        planned(checkpoint, tmp_path, link=False)


def test_float16_in_slices_is_joined_where_it_is_copied(tmp_path: Path) -> None:
    values = TABLE.astype(np.float16)
    checkpoint = checkpoint_of(tmp_path, values, GRID)
    written = carried_out(planned(checkpoint, tmp_path, link=False), checkpoint)
    assert written.entries["table_0"].whole
    assert written.read_all("table_0").tobytes() == values.tobytes()


def test_linked_variables_need_no_file_of_copies_before_the_dense_ones(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(tmp_path, TABLE)
    plan = planned(checkpoint, tmp_path, link=True)
    link_files(plan)
    assert not plan.written_file.exists()
    write_variables(plan, checkpoint, {"weight_0": "bias"}, GRAPH, [])
    written = open_checkpoint(plan.prefix)
    assert written.read_all("weight_0").tolist() == [0, 1, 2]
    assert written.read_all("table_0").tobytes() == TABLE.tobytes()


def test_what_an_earlier_run_wrote_behind_the_copies_is_cut_off(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(tmp_path, TABLE)
    plan = planned(checkpoint, tmp_path, link=False)
    plan.written_file.write_bytes(bytes(5000))
    carried_out(plan, checkpoint)
    graph = 1 + 4 + len(GRAPH)  # its length, the checksum of that, and itself
    assert plan.written_file.stat().st_size == TABLE.nbytes + 3 * 8 + 4 + graph


def test_dense_variables_lie_behind_the_copies_in_the_order_of_their_keys(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(tmp_path, TABLE)
    plan = planned(checkpoint, tmp_path, link=False)
    plan.written_file.touch()
    receipts = [carry_out(task) for task in plan.tasks]
    small = {"weight_1": "scale", "weight_0": "bias"}
    write_variables(plan, checkpoint, small, GRAPH, receipts[::-1])
    written = open_checkpoint(plan.prefix)
    offsets = {key: entry.slices[0].offset for key, entry in written.entries.items()}
    graph = TABLE.nbytes + 3 * 8 + 4
    assert offsets == {
        "table_0": 0,
        "weight_0": TABLE.nbytes,
        "weight_1": TABLE.nbytes + 3 * 8,
        objectgraph.KEY: graph,
    }
    assert written.read_all("table_0").tobytes() == TABLE.tobytes()


def test_variables_of_several_keys_are_summed_apart(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(tmp_path, TABLE)
    (tmp_path / "sm" / "variables").mkdir(parents=True)
    entries = {"table_0": checkpoint.entries["big"], "table_1": checkpoint.entries["bias"]}
    plan = plan_variables(tmp_path / "sm", entries, BUDGET_BYTES, link=False)
    written = carried_out(plan, checkpoint)
    assert written.read_all("table_0").tobytes() == TABLE.tobytes()
    assert written.read_all("table_1").tolist() == [0, 1, 2]
