"""Nightly exports of one model: a version shares the segments on the disk that equal those of the
newest version before it, and a stopped run copies again only the segments whose rows changed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.storage import catalog, retention
from bundle.tables.reader import TableReader
from export.checkpoint.inventory.specs import StatedTable, Statements
from export.errors import CheckpointError, DestinationError
from export.jobs.destinations import Destination
from export.jobs.progress import Progress
from export.jobs.staged import Published
from export.jobs.tables_job import TablesJob, export_tables, prepare_tables
from export.recipe.settings import ExportSettings
from export.tables.plan import ExportPlan, WriteOptions
from tests.random_cases import moments
from tests.units.export.checkpoint.dump_files import sok_dump
from tests.units.export.checkpoint.orbax_trees import write_item
from tests.units.export.checkpoint.tensor_bundles import Box, write_bundle
from tests.units.export.commands import Command
from tests.units.export.forked_runs import ForkedRuns
from tests.units.export.killed_jobs import KILLED
from tests.units.export.movies_job import facts, hidden

ROWS = 2_000
DIM = 32
SEGMENT_ROWS = 250
SEGMENTS = ROWS // SEGMENT_ROWS
Values = NDArray[Any]
ITEMS = np.random.default_rng(1).standard_normal((ROWS, DIM)).astype(np.float32)
FEW = TablesJob(writing=WriteOptions(segment_rows=SEGMENT_ROWS))


class Nights:
    """Exports of one model whose checkpoint is saved again between them."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "bundles"
        self._checkpoint = directory / "ckpt"

    def plan(self, job: TablesJob = FEW, **settings: Any) -> ExportPlan:
        destination = Destination(self.root, None)
        return prepare_tables(self._checkpoint, destination, job, ExportSettings(**settings)).plan

    def save(self, tables: dict[str, Any], boxes: list[Box] | None = None) -> None:
        variables = {f"{name}/embeddings": values for name, values in tables.items()}
        cuts = {"items/embeddings": boxes} if boxes else {}
        write_bundle(self._checkpoint, variables, boxes=cuts)

    def export(self, job: TablesJob = FEW, **settings: Any) -> Published:
        """Exports the checkpoint as the next version."""
        chosen = ExportSettings(**settings)
        prepared = prepare_tables(self._checkpoint, Destination(self.root, None), job, chosen)
        return export_tables(prepared, chosen, Progress())

    def version(self, number: int) -> Path:
        return self.root / "tables" / str(number)

    def files(self, number: int) -> dict[str, Path]:
        tables = self.version(number) / "tables"
        return {str(path.relative_to(tables)): path for path in tables.rglob("*.bin")}

    def shared(self) -> set[str]:
        """Returns the names of the segments that versions 1 and 2 share."""
        older = {path.stat().st_ino for path in self.files(1).values()}
        return {name for name, path in self.files(2).items() if path.stat().st_ino in older}

    def rows(self, number: int) -> NDArray[np.float32]:
        return rows_of(self.version(number), "items")


def rows_of(bundle: Path, table: str) -> NDArray[np.float32]:
    entry = catalog.read_manifest(bundle).tables[table]
    reader = TableReader(bundle, entry)
    rows = reader.gather(np.arange(entry.rows))
    reader.close()
    return rows


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    return Nights(tmp_path)


def trained(first: int, rows: int) -> Values:
    """Returns the items after a day of training that changed some rows."""
    values = ITEMS.copy()
    values[first : first + rows] += 1
    return values


def contents(directory: Path) -> dict[str, str]:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


COLUMNS: list[Box] = [[(0, -1), (0, 20)], [(0, -1), (20, 12)]]


def test_version_keeps_the_segments_that_it_shares_when_the_older_one_is_removed(
    nights: Nights, command: Command
) -> None:
    """tests/units/export/jobs/test_shared_rows.py has what versions share of any table."""
    nights.save({"items": ITEMS})
    nights.export()
    older = contents(nights.version(1))
    nights.save({"items": trained(300, 270)})
    published = nights.export()
    assert published.reused.segments == SEGMENTS - 2 == len(nights.shared())
    assert published.notes == ()
    assert contents(nights.version(1)) == older

    assert retention.sweep_old(nights.root, "tables", keep=1, spare=2) == ([1], [])
    verified = command("verify", nights.version(2), "--checkpoint", nights.root.parent, "--full")
    assert verified.code == 0, verified.err


def test_rows_that_are_read_in_another_order_than_they_are_written_are_shared(
    nights: Nights,
) -> None:
    nights.save({"items": ITEMS})
    nights.export()
    nights.save({"items": trained(0, 1)}, COLUMNS)
    assert nights.export().reused.segments == SEGMENTS - 1
    np.testing.assert_array_equal(nights.rows(2), trained(0, 1))


def test_segments_of_a_version_that_cannot_be_read_are_written_and_noted(nights: Nights) -> None:
    nights.save({"items": ITEMS})
    nights.export()
    page = nights.version(1) / "manifest.json"
    page.write_text(page.read_text().replace('"format_version": 1', '"format_version": 99', 1))
    published = nights.export()
    assert published.reused.segments == 0
    assert "no segment of an older version is reused" in " ".join(published.notes)
    np.testing.assert_array_equal(nights.rows(2), ITEMS)


@contextmanager
def on_another_file_system() -> Iterator[Path]:
    """Yields a path whose file system is not that of a temporary directory."""
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == Path("/tmp").stat().st_dev:
        pytest.skip("needs two file systems")
    path = memory / f"rowcast-older-{os.getpid()}"
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def test_version_on_another_file_system_is_noted_and_shares_nothing(nights: Nights) -> None:
    nights.save({"items": ITEMS})
    nights.export()
    with on_another_file_system() as elsewhere:
        shutil.move(nights.version(1), elsewhere)
        nights.version(1).symlink_to(elsewhere)
        published = nights.export()
    assert published.reused.segments == 0
    assert "another file system" in published.notes[0]


def test_linked_versions_and_runs_without_reuse_share_nothing(
    nights: Nights, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    nights.save({"items": ITEMS})
    nights.export(replace(FEW, writing=WriteOptions(link=True)))
    assert nights.export().reused.segments == 0
    assert nights.export(reuse=False).reused.segments == 0
    run = ["tables", nights.root.parent, nights.root, "--json"]
    monkeypatch.setenv("ROWCAST_EXPORT_REUSE", "false")
    assert command(*run).json["reused"]["segments"] == 0
    assert command(*run, "--reuse").json["reused"]["segments"] == 1
    planned = " ".join(command(*run[:-1], "--reuse", "--plan").out.split())
    assert "equal those of version 5" in planned


def test_space_is_not_asked_for_segments_that_may_be_shared(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment_bytes = SEGMENT_ROWS * DIM * 4
    nights.save({"items": ITEMS})
    nights.export()
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=segment_bytes - 1))
    assert nights.plan().older_version == 1
    with pytest.raises(DestinationError, match="the tables need"):
        nights.plan(reuse=False)
    nights.save({"items": ITEMS, "users": ITEMS[:SEGMENT_ROWS]})
    with pytest.raises(DestinationError, match="1 B more"):
        nights.plan()


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "apart"), [((), 7), (("--workers", "2", "--dtype", "items=int8"), 11)]
)
def test_run_that_is_killed_anywhere_resumes_and_changes_no_other_version(
    request: pytest.FixtureRequest,
    nights: Nights,
    forked: ForkedRuns,
    tmp_path: Path,
    options: tuple[str, ...],
    apart: int,
) -> None:
    nights.save({"same": ITEMS, "items": ITEMS})
    run = ["tables", str(tmp_path), str(nights.root), *options]
    assert forked.run([*run, "--version", "1"], tmp_path / "output") == 0
    older = contents(nights.version(1))
    nights.save({"same": ITEMS, "items": trained(5, 3)})
    run += ["--version", "2"]
    assert forked.run(run, tmp_path / "output") == 0
    expected = facts(nights.version(2))
    expected_rows = {name: rows_of(nights.version(2), name) for name in ("same", "items")}
    for number in moments(request, apart):
        shutil.rmtree(nights.version(2))
        status = forked.run(run, tmp_path / "output", operation=number)
        if status == 0:
            break
        assert status in KILLED
        is_published = nights.version(2).is_dir()
        assert forked.run(run, tmp_path / "output") == (6 if is_published else 0)
        assert facts(nights.version(2)) == expected
        assert nights.shared() == set(nights.files(1))
        assert contents(nights.version(1)) == older
        assert hidden(nights.root) == []
    assert number > 20

    # The older version may be removed in between.
    shutil.rmtree(nights.version(2))
    assert forked.run(run, tmp_path / "output", noted=2) in KILLED
    shutil.rmtree(nights.version(1))
    assert forked.run(run, tmp_path / "output") == 0
    for name, rows in expected_rows.items():
        np.testing.assert_array_equal(rows_of(nights.version(2), name), rows)


# A run that was stopped after the copy, and its checkpoint that was saved again meanwhile.

BEFORE = np.arange(40 * 8, dtype=np.float32).reshape(40, 8)
AFTER = BEFORE.copy()
AFTER[25:] += 1
"""The same rows but for those of the last segments."""
STACK = Statements(
    layouts={
        "user": StatedTable(
            key="params.embedding.embedding", kind="sparse_core", rows=36, dim=8, cores=4
        )
    }
)
STORED_ROWS = np.arange(36) % 4 * 10 + np.arange(36) // 4


def hdf5(directory: Path, values: Values) -> Path:
    with h5py.File(directory / "m.weights.h5", "w") as file:
        options = {"chunks": (5, 8), "shuffle": True}
        file.create_dataset("layers/embedding/vars/0", data=values, **options)
    return directory / "m.weights.h5"


def dump(directory: Path, values: Values) -> Path:
    return sok_dump(directory / "dump", "embedding", np.arange(100, 140), values)


def ocdbt(directory: Path, values: Values) -> Path:
    write_item(directory / "item", {"params.embedding.embedding": values}, chunk_rows=10)
    return directory / "item"


def tensorflow(directory: Path, values: Values) -> Path:
    write_bundle(directory / "ckpt", {"embedding/embeddings": values})
    return directory


FORMATS: dict[str, Callable[[Path, Values], Path]] = {
    "HDF5 in chunks": hdf5,
    "dump": dump,
    "OCDBT": ocdbt,
    "TensorFlow": tensorflow,
    "a stack in OCDBT": ocdbt,
}


class Stop(Progress):
    """Interrupts a job when its tables are copied; notes how many bytes were moved before."""

    moved_bytes = 0

    @contextmanager
    def step(self, name: str, *arguments: Any) -> Iterator[Callable[[int], None]]:
        if name != "tables":
            raise KeyboardInterrupt

        def moved(more: int) -> None:
            self.moved_bytes += more

        yield moved


def stopped(checkpoint: Path, root: Path, statements: Statements) -> dict[str, int]:
    """Runs a job that is interrupted; returns the inodes of its staged segments."""
    writing = WriteOptions(segment_rows=10)
    job = TablesJob("m", 1, statements, writing=writing, accept_stated=True)
    settings = ExportSettings(workers=1)
    prepared = prepare_tables(checkpoint, Destination(root, None), job, settings)
    progress = Stop()
    with pytest.raises(KeyboardInterrupt):
        export_tables(prepared, settings, progress)
    assert progress.moved_bytes == prepared.plan.moved_bytes  # whatever was there already
    staged = root / "m/.staging-1"
    segments = (staged / "tables").rglob("*.bin")
    return {str(path.relative_to(staged)): path.stat().st_ino for path in segments}


def staged_rows(root: Path, names: dict[str, int]) -> Values:
    data = b"".join((root / "m/.staging-1" / name).read_bytes() for name in sorted(names))
    return np.frombuffer(data, "<f4").reshape(-1, 8)


def overwrite(directory: Path, replacement: Path) -> None:
    """Overwrites every file that differs, in place: size, times and inode stay."""
    for file in directory.rglob("*"):
        new = replacement / file.relative_to(directory)
        if file.is_file() and file.read_bytes() != new.read_bytes():
            status = file.stat()
            with file.open("r+b") as stream:
                stream.write(new.read_bytes())
            os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("name", FORMATS)
def test_stopped_run_copies_again_the_segments_whose_rows_changed(
    tmp_path: Path, name: str
) -> None:
    """Contents decide, whatever the place, the size and the times of the files."""
    for part in ("a", "b"):
        (tmp_path / part).mkdir()
    checkpoint = FORMATS[name](tmp_path / "a", BEFORE)
    root = tmp_path / "out"
    statements = Statements()
    rows = np.arange(40)
    if "stack" in name:
        statements = STACK
        rows = STORED_ROWS
    first = stopped(checkpoint, root, statements)
    np.testing.assert_array_equal(staged_rows(root, first), BEFORE[rows])
    moved = shutil.copytree(tmp_path / "a", tmp_path / "moved", copy_function=shutil.copyfile)
    checkpoint = Path(moved) / checkpoint.relative_to(tmp_path / "a")
    assert stopped(checkpoint, root, statements) == first

    FORMATS[name](tmp_path / "b", AFTER)
    if name in ("HDF5 in chunks", "dump"):
        overwrite(Path(moved), tmp_path / "b")
    else:  # their indexes hold checksums
        shutil.rmtree(moved)
        shutil.copytree(tmp_path / "b", moved)
    second = stopped(checkpoint, root, statements)
    np.testing.assert_array_equal(staged_rows(root, second), AFTER[rows])
    changed = {file for file, inode in second.items() if first[file] != inode}
    # A slice of TensorFlow has one checksum, and each segment of a stack has rows of all chunks.
    assert len(changed) == (4 if name in ("TensorFlow", "a stack in OCDBT") else 2)


def test_tables_of_another_dtype_or_of_a_damaged_slice_are_copied_by_the_next_run(
    tmp_path: Path,
) -> None:
    tensorflow(tmp_path, BEFORE)
    data = tmp_path / "ckpt.data-00000-of-00001"
    right = data.read_bytes()
    status = data.stat()
    root = tmp_path / "out"
    stopped(tmp_path, root, Statements())
    job = TablesJob("m", 1, writing=WriteOptions(10, "float16"))
    for content in (right[:200] + bytes([right[200] ^ 1]) + right[201:], right):
        data.write_bytes(content)
        os.utime(data, ns=(status.st_atime_ns, status.st_mtime_ns))
        settings = ExportSettings(workers=1)
        prepared = prepare_tables(tmp_path, Destination(root, None), job, settings)
        if content != right:
            with pytest.raises(CheckpointError, match="do not match"):
                export_tables(prepared, settings, Progress())
        else:
            export_tables(prepared, settings, Progress())
    np.testing.assert_array_equal(rows_of(root / "m/1", "embedding"), BEFORE)


def test_space_is_not_asked_for_what_a_stopped_run_staged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensorflow(tmp_path, BEFORE)
    stopped(tmp_path, tmp_path / "out", Statements())
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0))
    stopped(tmp_path, tmp_path / "out", Statements())
    with pytest.raises(DestinationError, match="the tables need"):
        stopped(tmp_path, tmp_path / "other", Statements())
