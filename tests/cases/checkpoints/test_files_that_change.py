"""Data files that are read while they change, end early, overlap, or lie in a store."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from export.checkpoint import datafiles
from export.checkpoint.datafiles import DataFiles
from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError
from tests.cases.checkpoints.inspections import in_a_store, rejected, run
from tests.laws.flipped_bits import opened_rows
from tests.laws.stored_arrays import StoredArray
from tests.laws.zarr_files import write_zarr
from tests.units.export.checkpoint.orbax_trees import write_item
from tests.units.export.checkpoint.tensor_bundles import Box, write_bundle

VALUES = np.random.default_rng(0).standard_normal((37, 6)).astype(np.float32)
DATA = "c.data-00000-of-00001"


def tensorflow(directory: Path) -> None:
    write_bundle(directory / "c", {"v": VALUES}, lead=b"")


def orbax(directory: Path) -> None:
    write_item(directory / "c", {"v": VALUES})
    for file in (directory / "c").iterdir():
        file.rename(directory / file.name)


def hdf5(directory: Path) -> None:
    with h5py.File(directory / "a.h5", "w") as file:
        file.create_dataset("v", data=VALUES, chunks=(10, 6))


def cut_short(path: Path) -> None:
    os.truncate(path / DATA, VALUES.nbytes - 8)


def saved_anew(path: Path) -> None:
    shutil.rmtree(path / "d")
    (path / "manifest.ocdbt").unlink()
    write_item(path / "new", {"v": VALUES + 1})
    for file in (path / "new").iterdir():
        if file.name != "_METADATA":
            file.rename(path / file.name)


@pytest.mark.parametrize(
    ("write", "change", "words"),
    [
        (tensorflow, cut_short, "changed while"),
        (tensorflow, lambda path: (path / DATA).unlink(), "max_to_keep"),
        (tensorflow, lambda path: os.utime(path / DATA, (1, 1)), "changed while"),
        (orbax, saved_anew, "changed while"),
        (orbax, lambda path: (path / "manifest.ocdbt").unlink(), "manifest.ocdbt"),
        (hdf5, lambda path: os.utime(path / "a.h5", (1, 1)), "changed while"),
        (hdf5, lambda path: (path / "a.h5").unlink(), "a.h5"),
    ],
)
def test_file_that_changes_after_it_was_opened_is_an_error_that_names_it(
    write: Callable[[Path], None], change: Callable[[Path], object], words: str, tmp_path: Path
) -> None:
    write(tmp_path)
    entry = open_checkpoint(tmp_path).entries["v"]
    change(tmp_path)
    with pytest.raises(CheckpointError, match=words), opened_rows(entry) as rows:
        rows.read_into(0, np.empty((37, VALUES[0].nbytes), np.uint8))


@pytest.mark.parametrize("name", ["0.1", "2.0"])
def test_chunks_may_not_come_or_go_while_an_array_is_read(name: str, tmp_path: Path) -> None:
    array = StoredArray(VALUES, (), (10, 6), "raw")
    write_zarr(tmp_path, {"v": array}, driver="zarr", packed=False)
    entry = open_checkpoint(tmp_path).entries["v"]
    file = tmp_path / "v" / name
    rows = opened_rows(entry)
    rows.read_into(0, np.empty((10, VALUES[0].nbytes), np.uint8))
    if file.exists():
        file.unlink()
    else:
        file.write_bytes(b"")
    with pytest.raises(CheckpointError, match="changed while"), rows:
        pass


def test_file_in_a_store_that_was_written_again_is_not_read(tmp_path: Path) -> None:
    tensorflow(tmp_path)
    store = in_a_store(tmp_path)
    checkpoint = open_checkpoint(store)
    checkpoint.check_unchanged()
    (store / DATA).write((tmp_path / DATA).read_bytes())
    with pytest.raises(CheckpointError, match=f"{DATA} changed while"):
        checkpoint.check_unchanged()
    (store / DATA).remove()
    assert f"{DATA} cannot be read" in rejected(store)


def test_file_is_read_on_where_the_system_reads_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensorflow(tmp_path)
    whole = os.preadv
    problems: list[OSError] = []

    def few_bytes(handle: int, to: Any, offset: int) -> int:
        if offset >= 8 and problems:
            raise problems[0]
        return whole(handle, [to[0][:5]], offset)

    monkeypatch.setattr(os, "preadv", few_bytes)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.read("v", 0, 37).tobytes() == VALUES.tobytes()
    problems.append(OSError(5, "Input/output error"))
    with pytest.raises(CheckpointError, match=f"{DATA} cannot be read at byte 10: Input/output"):
        checkpoint.read("v", 0, 37)


def test_files_stay_open_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datafiles, "OPEN_FILES_MAX", 2)
    variables = dict.fromkeys("abc", VALUES)
    write_bundle(tmp_path / "c", variables, files=3)
    checkpoint = open_checkpoint(tmp_path)

    def open_now() -> int:
        links = [child for child in Path("/proc/self/fd").iterdir() if child.is_symlink()]
        return sum(os.readlink(link).startswith(str(tmp_path)) for link in links)

    with DataFiles() as files:
        for key, count in (("a", 1), ("a", 1), ("b", 2), ("c", 2), ("a", 2)):
            checkpoint.read(key, 0, 3, files)
            assert open_now() == count
    assert open_now() == 0


@pytest.mark.parametrize(
    ("boxes", "words"),
    [
        ([[(0, 10), (0, -1)], [(11, 26), (0, -1)]], "row 10 its slices hold nothing"),
        ([[(0, -1), (0, 5)]], "row 0 its slices hold columns 0 to 5"),
        ([[(0, 30), (0, -1)], [(29, 8), (0, -1)]], "row 29 its slices hold columns 0 to 6, col"),
        ([[(0, 30), (0, -1)], [(23, 7), (0, -1)]], "row 23 its slices hold columns 0 to 6, col"),
        (
            [[(0, -1), (0, 2)], [(0, 9), (2, 4)], [(9, 28), (3, 3)]],
            "row 9 its slices hold columns 0 to 2, columns 3 to 6",
        ),
    ],
)
def test_slices_that_overlap_or_leave_a_gap_are_rejected_with_the_row(
    boxes: list[Box], words: str, tmp_path: Path
) -> None:
    write_bundle(tmp_path / "c", {"v": VALUES}, boxes={"v": boxes})
    done = run("tables", tmp_path, tmp_path / "out", "--table=v=v", "--plan")
    assert done.code == 3
    assert words in done.message
    with pytest.raises(CheckpointError, match="overlap or leave a gap"):
        open_checkpoint(tmp_path).read_all("v")
