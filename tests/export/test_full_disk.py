"""Roots that are full, read-only or no directory: exit 6, one line, nothing visible; with room again, a run resumes."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.export.exporting import Recipe, aside, changed, facts, visible, write_project
from tests.export.forked_runs import ForkedRuns
from tests.export.killed_jobs import KILLED, tables_job

KIB = 1 << 10


class Disk:
    """A disk of a given size: a file system in memory where this process may mount one, else a limit of file sizes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", "size=4k", "none", str(path)]
        self.mounted = os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0
        self.limit = 0

    def resize(self, size: int) -> None:
        if self.mounted:
            self._remount(f"size={size}")
        else:
            self.limit = size // 8  # the largest file is about an eighth of a bundle

    def make_read_only(self) -> None:
        if self.mounted:
            self._remount("ro")
        else:
            self.path.chmod(0o500)

    def _remount(self, options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", str(self.path)], check=True)

    def close(self) -> None:
        if self.mounted:
            subprocess.run(["umount", str(self.path)], check=True)
        else:
            self.path.chmod(0o700)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path / "disk")
    yield made
    made.close()


def told(output: Path) -> str:
    lines = [line for line in output.read_text().splitlines() if not line.startswith("  ")]
    assert len(lines) == 1, output.read_text()
    return lines[0]


def test_run_on_a_disk_that_fills_at_every_step_exits_6_then_resumes_with_more_room(
    forked: ForkedRuns, recipe: Recipe, undisturbed: Path, disk: Disk, tmp_path: Path
) -> None:
    project = write_project(tmp_path / "project", changed(recipe, "output.root", str(disk.path)))
    run, output, failed = ["run", str(project), "--version", "1"], tmp_path / "output", 0
    for size in range(8 * KIB, 1024 * KIB, 20 * KIB):
        disk.resize(size)
        status = forked.run(run, output, **({} if disk.mounted else {"file_bytes": disk.limit}))
        if status == 0:
            break
        assert status == 6, output.read_text()
        assert told(output).startswith("rowcast-export: ")
        assert not told(output).startswith("rowcast-export: the destination:")  # but with its path
        assert visible(disk.path) == []
        failed += 1
    assert status == 0
    assert failed >= 4
    assert facts(disk.path / "movies/1") == facts(undisturbed)
    assert aside(disk.path) == []


def test_tables_that_fit_the_disk_once_are_resumed_where_they_fill_it(
    forked: ForkedRuns, disk: Disk, tmp_path: Path
) -> None:
    job = tables_job(tmp_path / "checkpoint", 3000)  # 940 KiB
    disk.resize(1100 * KIB)
    output = tmp_path / "output"
    assert forked.run(job.arguments(disk.path), output, noted=5) in KILLED
    assert forked.run(job.arguments(disk.path), output) == 0, output.read_text()
    assert aside(disk.path) == []


def test_run_into_a_read_only_root_exits_6(forked: ForkedRuns, recipe: Recipe, disk: Disk, tmp_path: Path) -> None:
    disk.make_read_only()
    project = write_project(tmp_path / "project", changed(recipe, "output.root", str(disk.path)))
    assert forked.run(["run", str(project)], tmp_path / "output") == 6
    assert str(disk.path) in told(tmp_path / "output")
    assert "choose a root that can be written" in told(tmp_path / "output")


def test_run_into_a_root_that_is_a_file_exits_6(forked: ForkedRuns, recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    project = write_project(tmp_path / "project", changed(recipe, "output.root", str(tmp_path / "file")))
    assert forked.run(["run", str(project)], tmp_path / "output") == 6
    assert "choose a root that is a directory" in told(tmp_path / "output")
    assert (tmp_path / "file").read_text() == "kept"


def test_run_of_a_version_that_is_there_exits_6_and_leaves_it(
    forked: ForkedRuns, recipe: Recipe, undisturbed: Path, tmp_path: Path
) -> None:
    before = facts(undisturbed)
    project = write_project(tmp_path / "project", changed(recipe, "output.root", str(undisturbed.parents[1])))
    assert forked.run(["run", str(project), "--version", "1"], tmp_path / "output") == 6
    assert "is there already" in told(tmp_path / "output")
    assert facts(undisturbed) == before
    assert aside(undisturbed.parents[1]) == []


def test_limit_of_file_sizes_is_a_full_disk_too(forked: ForkedRuns, project: Path, tmp_path: Path) -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    assert forked.run(["run", str(project)], tmp_path / "output", file_bytes=4 * KIB) == 6
    assert "ile too large" in told(tmp_path / "output")
    assert visible(project.parent / "bundles") == []
