from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest

from export.cli.main import main
from tests.units.export.commands import Command, CommandResult
from tests.units.export.forked_runs import ForkedRuns
from tests.units.export.movies_job import Recipe, recipe_of, write_project
from tests.units.export.small_job import save_small_recipe
from tests.units.export.traced_models import (
    TracedCheckpoint,
    movies_recipe,
    save_and_trace,
)


@pytest.fixture(scope="session")
def forked() -> ForkedRuns:
    """Runs of `rowcast-export` in children of a process that has imported TensorFlow."""
    return ForkedRuns()


@pytest.fixture
def forked_command(forked: ForkedRuns, tmp_path: Path) -> Command:
    """The command line in such a child.

    What TensorFlow writes depends on what this process did with it before. So a run that resumes
    another, or is compared with it byte by byte, is in a process as new as that.
    """

    def run(*arguments: object) -> CommandResult:
        output = tmp_path / "command_output"
        status = forked.run([str(argument) for argument in arguments], output)
        return CommandResult(status, "", output.read_text())

    return run


@pytest.fixture(scope="session")
def movies(tmp_path_factory: pytest.TempPathFactory) -> TracedCheckpoint:
    """Two towers and a ranker over one call of a TFRS layer."""
    return save_and_trace(movies_recipe(), tmp_path_factory.mktemp("movies"))


@pytest.fixture(scope="session")
def recipe(movies: TracedCheckpoint) -> Recipe:
    """A whole job over the movies' checkpoint."""
    return recipe_of(movies.prefix)


@pytest.fixture(scope="session")
def small_recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """A whole job that is small in every way."""
    return save_small_recipe(tmp_path_factory.mktemp("small"))


@pytest.fixture
def project(recipe: Recipe, tmp_path: Path) -> Path:
    """Its recipe's file, beside all that it reads."""
    return write_project(tmp_path / "project", recipe)


@pytest.fixture(scope="session")
def undisturbed(
    recipe: Recipe, forked: ForkedRuns, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The bundle of a run that nothing stopped; beside it, in `output`, what the run printed."""
    project = write_project(tmp_path_factory.mktemp("undisturbed"), recipe)
    assert forked.run(["run", str(project), "--version", "1"], project.parent / "output") == 0
    return project.parent / "bundles/movies/1"


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Runs the command line in this process."""

    def run(*arguments: object) -> CommandResult:
        monkeypatch.setattr(sys, "argv", ["rowcast-export", *map(str, arguments)])
        capfd.readouterr()
        try:
            with pytest.raises(SystemExit) as finished:
                main()
        finally:
            gc.enable()  # a process that goes on looks for garbage
        return CommandResult(finished.value.code, *capfd.readouterr())

    return run
