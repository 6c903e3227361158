"""A job that is killed, interrupted or damaged: the same command ends with the same bundle."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.units.export.commands import Command
from tests.units.export.forked_runs import ForkedRuns
from tests.units.export.killed_jobs import KILLED, journaled, noted_steps, rewritten
from tests.units.export.movies_job import (
    Facts,
    Recipe,
    facts,
    hidden,
    run_arguments,
    visible,
    write_project,
)
from tests.units.export.small_job import STEPS, TABLE_STEPS

ROWS = "tables/users/rows-00000-of-00001.bin"
STORE = "corpora/movies/store.arrow"
VOCABULARY = "vocabularies/movies.arrow"
TOWER = "towers/query/compiled-f32.tflite"
VECTORS = "indexes/movies/vectors.bin"
INDEX = "indexes/movies/scann/dataset.npy"


@pytest.fixture
def project(small_recipe: Recipe, tmp_path: Path) -> Path:
    return write_project(tmp_path / "project", small_recipe)


@pytest.mark.nightly
@pytest.mark.slow
def test_run_killed_at_every_step_resumes_to_the_same_bundle(
    forked: ForkedRuns, project: Path, small_facts: Facts, tmp_path: Path
) -> None:
    root = project.parent / "bundles"
    finished = journaled(root / "small")
    # Each run notes the step that the one before left unnoted, and is killed with the files of the
    # next one written.
    for number, unnoted in enumerate((1, *[2] * (STEPS - 1))):
        status = forked.run(run_arguments(project), tmp_path / "output", unnoted=unnoted)
        assert status in KILLED
        assert visible(root) == []
        assert len(noted_steps(root / "small")) == number
        assert rewritten(finished, root / "small/.staging-1") == set()
        finished = journaled(root / "small")

    assert forked.run(run_arguments(project), tmp_path / "output") == 0
    assert rewritten(finished, root / "small/1") == set()
    assert facts(root / "small/1") == small_facts
    assert hidden(root) == []


def test_run_while_another_writes_the_version_exits_6_and_the_other_publishes(
    forked: ForkedRuns, command: Command, project: Path, small_facts: Facts, tmp_path: Path
) -> None:
    pid = forked.start(run_arguments(project), tmp_path / "first", stops=1)
    assert forked.status() == -signal.SIGSTOP
    second = command(*run_arguments(project))
    os.kill(pid, signal.SIGCONT)
    assert forked.status() == 0
    assert second.code == 6
    assert "is being written by another run" in second.err
    assert facts(project.parent / "bundles/small/1") == small_facts


def test_run_that_is_interrupted_exits_130_with_a_message_and_resumes(
    forked: ForkedRuns, forked_command: Command, project: Path, small_facts: Facts, tmp_path: Path
) -> None:
    pid = forked.start(run_arguments(project), tmp_path / "output", stops=1)
    assert forked.status() == -signal.SIGSTOP
    os.kill(pid, signal.SIGINT)
    os.kill(pid, signal.SIGCONT)
    assert forked.status() == 130
    lines = [
        line for line in (tmp_path / "output").read_text().splitlines() if not line.startswith("  ")
    ]
    assert lines == ["rowcast-export: interrupted; run the same command again to resume"]
    assert visible(project.parent / "bundles") == []
    assert hidden(project.parent / "bundles") == [".staging-1", ".staging-1.journal"]

    resumed = forked_command(*run_arguments(project))
    assert resumed.code == 0, resumed.err
    assert facts(project.parent / "bundles/small/1") == small_facts


@pytest.mark.parametrize(
    ("steps", "damaged"),
    [
        (TABLE_STEPS, [ROWS, STORE]),
        (STEPS, [ROWS, STORE, TOWER, VECTORS, INDEX]),
    ],
)
def test_run_resumed_with_damaged_staged_files_writes_them_again(
    forked_command: Command,
    copy_killed: Callable[[int], Path],
    small_facts: Facts,
    steps: int,
    damaged: list[str],
) -> None:
    project = copy_killed(steps)
    model = project.parent / "bundles/small"
    for file in damaged:
        path = model / ".staging-1" / file
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    finished = journaled(model)
    (model / ".staging-1" / VOCABULARY).unlink()

    done = forked_command(*run_arguments(project))

    assert done.code == 0, done.err
    assert rewritten(finished, model / "1") >= {*damaged, VOCABULARY}
    assert facts(model / "1") == small_facts
