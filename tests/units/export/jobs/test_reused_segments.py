"""Versions that share segments with the newest version before them."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console

from bundle.storage import catalog, retention
from bundle.tables.reader import TableReader
from export.cli.published_report import published_json, published_report
from export.errors import DestinationError
from export.jobs.destinations import Destination
from export.jobs.progress import Progress
from export.jobs.staged import Published
from export.jobs.tables_job import TablesJob, export_tables, prepare_tables
from export.recipe.settings import ExportSettings
from export.tables.older_versions import reused_segments
from export.tables.plan import ExportPlan, WriteOptions
from export.tables.segments import carry_out
from tests.random_cases import moments
from tests.units.export.checkpoint.tensor_bundles import Box, write_bundle
from tests.units.export.commands import Command
from tests.units.export.forked_runs import ForkedRuns
from tests.units.export.killed_jobs import KILLED
from tests.units.export.movies_job import Facts, facts, hidden

ROWS = 2_000
DIM = 32
SEGMENT_ROWS = 250
SEGMENT_BYTES = SEGMENT_ROWS * DIM * 4
TABLES: dict[str, NDArray[np.float32]] = {
    "items": np.random.default_rng(1).standard_normal((ROWS, DIM)).astype(np.float32)
}
FEW = TablesJob(writing=WriteOptions(segment_rows=SEGMENT_ROWS))


class Nights:
    """Exports of one model whose checkpoint is saved again between them."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "bundles"
        self._checkpoint = directory / "ckpt"

    def plan(self, job: TablesJob = FEW, **settings: Any) -> ExportPlan:
        """Plans the next version."""
        destination = Destination(self.root, None)
        return prepare_tables(self._checkpoint, destination, job, ExportSettings(**settings)).plan

    def save(self, tables: dict[str, Any], boxes: dict[str, list[Box]] | None = None) -> None:
        """Saves the checkpoint."""
        variables = {f"{name}/embeddings": values for name, values in tables.items()}
        cuts = {f"{name}/embeddings": cut for name, cut in (boxes or {}).items()}
        write_bundle(self._checkpoint, variables, boxes=cuts)

    def export(self, tables: dict[str, Any], job: TablesJob = FEW, **settings: Any) -> Published:
        """Saves the checkpoint, and exports it as the next version."""
        self.save(tables)
        return self.export_saved(job, **settings)

    def export_saved(self, job: TablesJob = FEW, **settings: Any) -> Published:
        """Exports the checkpoint as the next version."""
        chosen = ExportSettings(**settings)
        prepared = prepare_tables(self._checkpoint, Destination(self.root, None), job, chosen)
        return export_tables(prepared, chosen, Progress(Console(quiet=True)))

    def version(self, number: int) -> Path:
        """Returns the directory of a version."""
        return self.root / "tables" / str(number)

    def files(self, number: int) -> dict[str, Path]:
        """Returns the segments of a version by their names."""
        tables = self.version(number) / "tables"
        return {str(path.relative_to(tables)): path for path in tables.rglob("*.bin")}

    def shared(self) -> set[str]:
        """Returns the names of the segments that versions 1 and 2 share."""
        older = self.files(1)
        return {
            name
            for name, path in self.files(2).items()
            if name in older and path.samefile(older[name])
        }

    def rows(self, number: int, table: str = "items") -> NDArray[np.float32]:
        """Returns the rows of a table as a service reads them."""
        directory = self.version(number)
        entry = catalog.read_manifest(directory).tables[table]
        reader = TableReader(directory, entry)
        rows = reader.gather(np.arange(entry.rows))
        reader.close()
        return rows


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    return Nights(tmp_path)


def trained(first: int, rows: int) -> dict[str, NDArray[np.float32]]:
    """Returns the tables after a day of training that changed some rows."""
    values = TABLES["items"].copy()
    values[first : first + rows] += 1
    return {"items": values}


def contents(directory: Path) -> dict[str, str]:
    """Returns a digest of each file."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in directory.rglob("*")
        if path.is_file()
    }


def written_bytes() -> int:
    """Returns how many bytes this process has written."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["wchar"])


def test_version_of_a_table_with_few_changed_rows_writes_the_changed_segments_alone(
    nights: Nights, command: Command
) -> None:
    rows = 40_000
    segments = 20
    segment_bytes = rows // segments * DIM * 4
    job = TablesJob(writing=WriteOptions(segment_rows=rows // segments))
    values = np.random.default_rng(2).standard_normal((rows, DIM)).astype(np.float32)
    nights.export({"items": values}, job)
    older = contents(nights.version(1))
    values[21_000 : 21_000 + rows // 50] += 1
    nights.save({"items": values})
    before = written_bytes()
    published = nights.export_saved(job)
    # The journal and the manifest have a line or two for each segment.
    assert written_bytes() - before <= 1.3 * segment_bytes

    assert len(nights.shared()) == segments - 1
    assert published_json(published)["reused"] == {
        "segments": segments - 1,
        "bytes": (segments - 1) * segment_bytes,
    }
    output = StringIO()
    Console(file=output, width=300).print(published_report(published))
    assert "(4.9 MiB of tables, 4.6 MiB of it shared with older versions, 19 whole segments)" in (
        output.getvalue()
    )
    assert published.notes == ()
    assert contents(nights.version(1)) == older
    np.testing.assert_array_equal(nights.rows(2), values)

    # What is shared is there as long as one of the versions is.
    assert retention.sweep_old(nights.root, "tables", keep=1, spare=2) == ([1], [])
    verified = command("verify", nights.version(2), "--checkpoint", nights.root.parent, "--full")
    assert verified.code == 0, verified.err
    np.testing.assert_array_equal(nights.rows(2), values)


def test_version_equal_to_the_one_before_shares_all_of_it_and_its_scales(nights: Nights) -> None:
    job = replace(FEW, writing=replace(FEW.writing, dtype="int8"))
    nights.export(TABLES, job)
    published = nights.export(TABLES, job)
    assert published.reused.segments == 2 * ROWS // SEGMENT_ROWS
    assert published.reused.bytes == ROWS * (DIM + 4)
    assert nights.shared() == set(nights.files(2))
    np.testing.assert_array_equal(nights.rows(2), nights.rows(1))


def test_rows_that_are_read_in_another_order_than_they_are_written_are_shared(
    nights: Nights,
) -> None:
    halves: list[Box] = [[(0, -1), (0, 20)], [(0, -1), (20, 12)]]
    nights.export(TABLES)
    nights.save(trained(0, 1), {"items": halves})
    published = nights.export_saved()
    assert published.reused.segments == ROWS // SEGMENT_ROWS - 1
    np.testing.assert_array_equal(nights.rows(2), trained(0, 1)["items"])


def test_longer_table_shares_the_segments_that_were_full(nights: Nights) -> None:
    nights.export({"items": TABLES["items"][: 3 * SEGMENT_ROWS + 10]})
    published = nights.export({"items": TABLES["items"][: 5 * SEGMENT_ROWS]})
    assert published.reused.segments == 3
    np.testing.assert_array_equal(nights.rows(2), TABLES["items"][: 5 * SEGMENT_ROWS])


ZEROS = {"items": np.zeros((500, DIM), np.float32)}


@pytest.mark.parametrize(
    ("tables", "job"),
    [
        (ZEROS, replace(FEW, dtypes=(("items", "bfloat16"),))),
        (ZEROS, replace(FEW, writing=WriteOptions(segment_rows=200))),
        ({"items": np.zeros((250, 2 * DIM), np.float32)}, replace(FEW, writing=WriteOptions(125))),
        ({"users": ZEROS["items"]}, FEW),
        (ZEROS, replace(FEW, model="others")),
    ],
    ids=["dtype", "size of segments", "width", "name", "model"],
)
def test_segments_of_another_form_are_written_whatever_their_bytes(
    nights: Nights, tables: dict[str, Any], job: TablesJob
) -> None:
    nights.export(ZEROS, replace(FEW, dtypes=(("items", "float16"),)) if job.dtypes else FEW)
    published = nights.export(tables, job)
    assert published.reused.segments == 0
    names = published.manifest.tables
    linked = [path for path in (nights.root / job.model).rglob("*.bin") if path.stat().st_nlink > 1]
    assert (len(names), linked) == (1, [])


def test_damaged_segment_of_the_older_version_is_written_again(nights: Nights) -> None:
    nights.export(TABLES)
    damaged = nights.files(1)["items/rows-00003-of-00008.bin"]
    content = bytearray(damaged.read_bytes())
    content[1_000] ^= 1
    damaged.write_bytes(content)
    published = nights.export(TABLES)
    assert published.reused.segments == ROWS // SEGMENT_ROWS - 1
    np.testing.assert_array_equal(nights.rows(2), TABLES["items"])


def test_segment_that_a_version_of_a_shard_lacks_is_written(nights: Nights) -> None:
    nights.export(TABLES)
    nights.files(1)["items/rows-00003-of-00008.bin"].unlink()
    assert nights.export(TABLES).reused.segments == ROWS // SEGMENT_ROWS - 1


def test_version_that_is_linked_to_its_checkpoint_shares_nothing(nights: Nights) -> None:
    nights.export(TABLES, replace(FEW, writing=WriteOptions(link=True)))
    published = nights.export(TABLES)
    assert (published.reused.segments, published.notes) == (0, ())
    np.testing.assert_array_equal(nights.rows(2), TABLES["items"])


def test_without_reuse_every_segment_is_written(
    nights: Nights, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    nights.export(TABLES)
    assert nights.export(TABLES, reuse=False).reused.segments == 0
    run = ["tables", nights.root.parent, nights.root]
    monkeypatch.setenv("ROWCAST_EXPORT_REUSE", "false")
    assert command(*run, "--json").json["reused"] == {"segments": 0, "bytes": 0}
    assert command(*run, "--reuse", "--json").json["reused"]["segments"] == 1
    planned = command(*run, "--reuse", "--plan")
    assert "segments that equal those of version 4 reused" in " ".join(planned.out.split())
    monkeypatch.delenv("ROWCAST_EXPORT_REUSE")
    assert command(*run, "--no-reuse", "--json").json["reused"]["segments"] == 0


def test_version_that_cannot_be_read_is_noted_and_nothing_is_reused(nights: Nights) -> None:
    nights.export(TABLES)
    page = nights.version(1) / "manifest.json"
    page.write_text(page.read_text().replace('"format_version": 2', '"format_version": 99', 1))
    published = nights.export(TABLES)
    assert published.reused.segments == 0
    assert published.notes[0].startswith("no segment of an older version is reused: ")
    assert "99" in published.notes[0]


def test_version_on_another_file_system_is_noted_and_nothing_is_reused(nights: Nights) -> None:
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == nights.root.parent.stat().st_dev:
        pytest.skip("needs two file systems")
    nights.export(TABLES)
    moved = memory / f"rowcast-older-{os.getpid()}"
    shutil.move(nights.version(1), moved)
    nights.version(1).symlink_to(moved)
    try:
        published = nights.export(TABLES)
    finally:
        shutil.rmtree(moved)
    assert published.reused.segments == 0
    assert published.notes == (
        "no segment of version 1 is reused: it is on another file system than "
        f"{nights.root / 'tables'}",
    )


def test_segments_that_cannot_be_linked_are_written_and_noted(nights: Nights) -> None:
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == nights.root.parent.stat().st_dev:
        pytest.skip("needs two file systems")
    nights.export(TABLES)
    task = nights.plan().tasks[0]
    assert task.older is not None
    moved = memory / f"rowcast-older-{os.getpid()}"
    shutil.copy(task.older, moved)
    try:
        receipt = carry_out(replace(task, older=str(moved)))
    finally:
        moved.unlink()
    reused = reused_segments([receipt])
    assert reused.segments == 0
    assert reused.notes == [
        "segments that equal those of an older version were written, because they cannot be "
        f"linked: {os.strerror(errno.EXDEV)}"
    ]


def test_segment_whose_older_one_cannot_be_read_is_written(nights: Nights) -> None:
    nights.export(TABLES)
    task = nights.plan().tasks[0]
    # Its first page is never mapped: reading it is an input/output error.
    receipt = carry_out(replace(task, older="/proc/self/mem"))
    written = Path(task.directory, task.file)
    assert (receipt.reused_segments, receipt.link_problem) == (0, "")
    assert written.read_bytes() == TABLES["items"][:SEGMENT_ROWS].tobytes()


def test_space_is_not_asked_for_segments_that_may_be_shared(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    nights.export(TABLES)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=SEGMENT_BYTES - 1))
    plan = nights.plan()
    assert (plan.older_version, plan.bytes) == (1, TABLES["items"].nbytes)
    with pytest.raises(DestinationError, match="the tables need"):
        nights.plan(reuse=False)
    nights.save(TABLES | {"users": TABLES["items"][:SEGMENT_ROWS]})
    with pytest.raises(DestinationError, match=r"the tables need 31\.2 KiB: 1 B more"):
        nights.plan()


class Killed:
    """Runs of `tables` that write version 2 of two small tables, of which one has changed."""

    def __init__(self, forked: ForkedRuns, directory: Path) -> None:
        self._forked = forked
        self._directory = directory
        self._nights = Nights(directory)
        self.root = self._nights.root
        self._nights.export({"same": TABLES["items"], "other": TABLES["items"]}, TablesJob())
        self.older = contents(self._nights.version(1))
        self._nights.save({"same": TABLES["items"], "other": trained(5, 3)["items"]})

    def run(self, **dies: Any) -> int:
        """Begins version 2, or resumes it."""
        arguments = ["tables", str(self._directory), str(self.root), "--version", "2"]
        return self._forked.run(arguments, self._directory / "output", **dies)

    def check(self) -> Facts:
        """Checks both versions; returns the content of version 2."""
        shared = {Path(name).parent.name for name in self._nights.shared()}
        assert shared == {"same"}
        assert contents(self._nights.version(1)) == self.older
        assert hidden(self.root) == []
        return facts(self._nights.version(2))


@pytest.fixture
def killed(forked: ForkedRuns, tmp_path: Path) -> Killed:
    return Killed(forked, tmp_path)


@pytest.mark.slow
def test_run_that_was_killed_resumes_with_the_segments_that_it_shares(killed: Killed) -> None:
    assert killed.run() == 0
    expected = killed.check()
    for dies in ({"unnoted": 2}, {"noted": 2}, {"noted": 3}):
        shutil.rmtree(killed.root / "tables/2")
        assert killed.run(**dies) in KILLED
        assert killed.run() == 0
        assert killed.check() == expected


@pytest.mark.nightly
@pytest.mark.slow
def test_run_that_was_killed_resumes_after_the_older_version_was_removed(killed: Killed) -> None:
    assert killed.run() == 0
    expected = killed.check()
    shutil.rmtree(killed.root / "tables/2")
    assert killed.run(noted=2) in KILLED
    shutil.rmtree(killed.root / "tables/1")
    assert killed.run() == 0
    assert facts(killed.root / "tables/2") == expected


@pytest.mark.nightly
@pytest.mark.slow
def test_run_that_was_killed_before_a_change_of_a_file_resumes_and_changes_no_other_version(
    killed: Killed, request: pytest.FixtureRequest
) -> None:
    assert killed.run() == 0
    expected = killed.check()
    for number in moments(request, 7):
        shutil.rmtree(killed.root / "tables/2")
        status = killed.run(operation=number)
        if status == 0:
            break
        assert status in KILLED
        is_published = (killed.root / "tables/2").is_dir()
        assert killed.run() == (6 if is_published else 0)
        assert killed.check() == expected
    assert number > 20
