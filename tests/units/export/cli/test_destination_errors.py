"""Exit code 6: a root that is full or no directory. With more room, a run resumes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.units.export.commands import CommandResult
from tests.units.export.forked_runs import ForkedRuns
from tests.units.export.movies_job import Recipe, changed, facts, hidden, visible, write_project

KIB = 1 << 10


def message_of(output: Path) -> str:
    return CommandResult(6, "", output.read_text()).message


@pytest.mark.nightly
@pytest.mark.slow
def test_run_whose_files_grow_too_large_at_every_step_exits_6_then_resumes_with_more_room(
    forked: ForkedRuns, project: Path, undisturbed: Path, tmp_path: Path
) -> None:
    """A limit of file sizes stands for a disk that is full."""
    root = project.parent / "bundles"
    run = ["run", str(project), "--version", "1"]
    output = tmp_path / "o"
    failed = 0
    for size in range(1 * KIB, 256 * KIB, 9 * KIB):
        status = forked.run(run, output, file_bytes=size)
        if status == 0:
            break
        assert status == 6, output.read_text()
        # The message names the path instead.
        assert not message_of(output).startswith("rowcast-export: the destination:")
        assert visible(root) == []
        failed += 1
    assert status == 0
    assert failed >= 3
    assert re.search(r"^  resumed +.*tables.* of an earlier run$", output.read_text(), re.MULTILINE)
    assert facts(root / "movies/1") == facts(undisturbed)
    assert hidden(root) == []


def test_run_into_a_root_that_is_a_file_exits_2(
    forked: ForkedRuns, recipe: Recipe, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("kept")
    project = write_project(tmp_path, changed(recipe, "output.root", str(tmp_path / "file")))
    assert forked.run(["run", str(project)], tmp_path / "output") == 2
    file = tmp_path / "file"
    message = f"destination {file} is not a directory; name one, or a new path"
    assert message in message_of(tmp_path / "output")
    assert (tmp_path / "file").read_text() == "kept"
