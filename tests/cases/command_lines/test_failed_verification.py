"""What was written is not what was trained, or not as good as the recipe requires: exit code 5, and
nothing is published.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bundle.format import paths
from runtime.engines import default_engine
from tests.units.export.commands import Command, CommandResult, rejected
from tests.units.export.forked_runs import ForkedRuns
from tests.units.export.movies_job import (
    Recipe,
    changed,
    example_requests,
    hidden,
    run_arguments,
    visible,
    write_examples,
    write_project,
)
from tests.units.export.small_job import with_tree

TOWER = "towers/query/compiled-f32.tflite"
USERS = "tables/users/rows-00000-of-00001.bin"


def test_recall_that_is_not_reached_publishes_nothing(
    command: Command, small_recipe: Recipe, tmp_path: Path
) -> None:
    write_examples(tmp_path, example_requests())
    limited = with_tree(changed(small_recipe, "verify.examples", "examples.jsonl"), value=1.0)
    project = write_project(tmp_path, limited)
    rejected(command, project, 5, "the recipe requires 1.0", "keeps what is finished")
    done = command("clean", project.parent / "bundles")
    assert (done.code, hidden(project.parent / "bundles")) == (0, [])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("after", "file", "words"),
    [
        (TOWER, TOWER, TOWER),
        (TOWER, USERS, "tower 'query', SavedModel f32"),
        (paths.index_directory("movies", default_engine()), USERS, "table 'users'"),
    ],
)
def test_file_that_is_damaged_between_steps_is_found(
    forked: ForkedRuns, small_recipe: Recipe, tmp_path: Path, after: str, file: str, words: str
) -> None:
    project = write_project(tmp_path / "project", small_recipe)
    output = tmp_path / "output"
    status = forked.run(run_arguments(project), output, damages={"after": after, "file": file})
    assert (status, words in CommandResult(5, "", output.read_text()).message) == (5, True)
    assert visible(project.parent / "bundles") == []


@pytest.mark.nightly
@pytest.mark.slow
def test_run_on_a_full_disk_exits_6_and_resumes_with_more_room(
    forked: ForkedRuns, small_recipe: Recipe, tmp_path: Path
) -> None:
    """A limit of file sizes stands for the disk."""
    project = write_project(tmp_path / "project", small_recipe)
    root = project.parent / "bundles"
    failed = 0
    for size in range(1 << 10, 256 << 10, 9 << 10):
        status = forked.run(run_arguments(project), tmp_path / "output", file_bytes=size)
        if status == 0:
            break
        assert status == 6, (tmp_path / "output").read_text()
        assert visible(root) == []
        failed += 1
    assert (status, failed >= 3, hidden(root)) == (0, True, [])
    assert "of an earlier run" in (tmp_path / "output").read_text()
