"""What the small job writes, and runs of it that were killed."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.units.export.forked_runs import ForkedRuns
from tests.units.export.killed_jobs import KILLED
from tests.units.export.movies_job import Facts, Recipe, facts, run_arguments, write_project


@pytest.fixture(scope="session")
def small_facts(
    small_recipe: Recipe, forked: ForkedRuns, tmp_path_factory: pytest.TempPathFactory
) -> Facts:
    """What a run of the small job writes that nothing stops."""
    project = write_project(tmp_path_factory.mktemp("undisturbed") / "project", small_recipe)
    output = project.with_name("output")
    assert forked.run(run_arguments(project), output) == 0, output.read_text()
    return facts(project.parent / "bundles/small/1")


@pytest.fixture(scope="session")
def killed_runs(
    small_recipe: Recipe, forked: ForkedRuns, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], Path]:
    """Returns a function that returns the project of a run killed after a number of steps."""

    @functools.cache
    def killed(steps: int) -> Path:
        directory = tmp_path_factory.mktemp("killed")
        project = write_project(directory / "project", small_recipe)
        status = forked.run(run_arguments(project), directory / "output", noted=steps)
        assert status in KILLED
        return project

    return killed


@pytest.fixture
def copy_killed(killed_runs: Callable[[int], Path], tmp_path: Path) -> Callable[[int], Path]:
    """Returns a copy of such a project, for one test to resume.

    A journal knows files by their paths and checksums, and a recipe names what lies beside it by
    relative paths, so a run resumes in a copy as it would in the original. The copied files are
    other files than the original's: a test notes inodes and times in its copy, and a file that has
    both after the resumed run was not written again.
    """

    def copy(steps: int) -> Path:
        project = killed_runs(steps)
        return shutil.copytree(project.parent, tmp_path / "killed") / project.name

    return copy
