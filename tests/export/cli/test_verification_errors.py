"""Exit code 5: what was written is not what was trained. Nothing is published."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.export.commands import Command, CommandResult, refused
from tests.export.forked_runs import ForkedRuns
from tests.export.movies_job import (
    Recipe,
    changed,
    example_requests,
    facts,
    hidden,
    visible,
    write_examples,
    write_project,
)
from tests.export.traced_models import TracedCheckpoint, movies_recipe, save_checkpoint

TOWER = "towers/query/compiled-f32.tflite"


USERS = "tables/users/rows-00000-of-00001.bin"


def flipped(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        (
            "towers.ranking.max_abs_error",
            {"int8": 1e-6},
            "24 of 24 values break towers.ranking.max_abs_error.int8",
        ),
        (
            "indexes.movies",
            {
                "corpus": "movies",
                "query_tower": "query",
                "candidate_tower": "candidate",
                "kind": "tree_ah",
                "parameters": {"num_leaves": 20, "leaves_to_search": 1},
                "recall": {"value": 1.0},
            },
            "the recipe asks for 1.0",
        ),
    ],
)
def test_limit_that_is_not_reached_exits_5_and_publishes_nothing(
    command: Command, recipe: Recipe, tmp_path: Path, key: str, value: Any, told: str
) -> None:
    write_examples(tmp_path, example_requests())
    limited = changed(recipe, key, value)
    asks = (
        changed(limited, "verify.examples", "examples.jsonl")
        if key == "indexes.movies"
        else limited
    )
    project = write_project(tmp_path, asks)
    refused(command, project, 5, told, "keeps what is finished")
    done = command("clean", project.parent / "bundles")
    assert (done.code, hidden(project.parent / "bundles")) == (0, [])
    assert "removed" in done.out


@pytest.mark.parametrize(
    ("after", "file", "told"),
    [
        (TOWER, TOWER, "tower 'query', LiteRT f32"),
        (TOWER, USERS, "tower 'query', SavedModel f32"),
        ("indexes/movies/scann", USERS, "table 'users'"),
    ],
)
@pytest.mark.slow
def test_file_that_is_damaged_between_steps_exits_5_and_publishes_nothing(
    forked: ForkedRuns, project: Path, undisturbed: Path, after: str, file: str, told: str
) -> None:
    output = project.parent / "output"
    assert forked.run(["run", str(project)], output, damages={"after": after, "file": file}) == 5
    assert told in CommandResult(5, "", output.read_text()).message
    assert visible(project.parent / "bundles") == []
    assert forked.run(["run", str(project)], output) == 0, output.read_text()
    assert facts(project.parent / "bundles/movies/1") == facts(undisturbed)
    assert hidden(project.parent / "bundles") == []


def test_verify_of_a_damaged_bundle_or_against_another_checkpoint_exits_5(
    command: Command, undisturbed: Path, movies: TracedCheckpoint, tmp_path: Path
) -> None:
    other = save_checkpoint(movies_recipe(), tmp_path, seed=6)
    done = command("verify", undisturbed, "--checkpoint", other)
    assert (done.code, "row" in done.message) == (5, True)
    bundle = shutil.copytree(undisturbed, tmp_path / "bundle")
    flipped(bundle / TOWER, 100)
    done = command("verify", bundle)
    assert (done.code, f"file {TOWER!r} differs from its checksum" in done.message) == (5, True)
