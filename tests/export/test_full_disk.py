"""Roots that are full or no directory: exit 6, one line, nothing visible; with room again, a run resumes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from export.errors import DestinationError
from export.jobs.destinations import Destination
from export.jobs.staged import staged
from tests.export.commands import CommandResult
from tests.export.forked_runs import ForkedRuns
from tests.export.movies_job import Recipe, changed, facts, hidden, visible, write_project

pytestmark = pytest.mark.slow

KIB = 1 << 10


def message_of(output: Path) -> str:
    return CommandResult(6, "", output.read_text()).message


def test_run_whose_files_grow_too_large_at_every_step_exits_6_then_resumes_with_more_room(
    forked: ForkedRuns, project: Path, undisturbed: Path, tmp_path: Path
) -> None:
    """A limit of file sizes stands for a disk that is full."""
    root, run, output, failed = (
        project.parent / "bundles",
        ["run", str(project), "--version", "1"],
        tmp_path / "o",
        0,
    )
    for size in range(1 * KIB, 256 * KIB, 9 * KIB):
        status = forked.run(run, output, file_bytes=size)
        if status == 0:
            break
        assert status == 6, output.read_text()
        assert not message_of(output).startswith(
            "rowcast-export: the destination:"
        )  # but with its path
        assert visible(root) == []
        failed += 1
    assert status == 0
    assert failed >= 3
    assert facts(root / "movies/1") == facts(undisturbed)
    assert hidden(root) == []


@pytest.mark.parametrize(
    ("number", "cure"),
    [
        (errno.ENOSPC, "; free some space, then run again: it resumes"),
        (errno.EROFS, "; choose a root that can be written"),
        (errno.EIO, ""),
    ],
)
def test_disk_that_fails_is_reported_with_its_path_and_the_cure(
    tmp_path: Path, number: int, cure: str
) -> None:
    def fail() -> None:
        with staged(Destination(tmp_path, None), "m", 1) as draft:
            (draft.stage.directory / "kept").touch()
            raise OSError(number, os.strerror(number), "/the/file")

    with pytest.raises(DestinationError, match=f"^/the/file: {os.strerror(number)}{cure}$"):
        fail()
    assert (tmp_path / "m/.staging-1/kept").exists()
    assert not (tmp_path / "m/.staging-1.lock").exists()


def test_run_into_a_root_that_is_a_file_exits_6(
    forked: ForkedRuns, recipe: Recipe, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("kept")
    project = write_project(tmp_path, changed(recipe, "output.root", str(tmp_path / "file")))
    assert forked.run(["run", str(project)], tmp_path / "output") == 6
    assert "choose a root that is a directory" in message_of(tmp_path / "output")
    assert (tmp_path / "file").read_text() == "kept"
