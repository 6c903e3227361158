"""A checkpoint that is damaged or another model's, exit 3; a bundle that is not what was trained, exit 5."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from export.checkpoint.reader import open_checkpoint
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

DATA, INDEX = "ckpt-3.data-00000-of-00001", "ckpt-3.index"
TOWER, USERS = "towers/query/compiled-f32.tflite", "tables/users/rows-00000-of-00001.bin"


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flipped(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("file", "damage", "told"),
    [
        (INDEX, Path.unlink, "has data files but no ckpt-3.index"),
        (INDEX, cut_short, "cut short"),
        (INDEX, lambda path: flipped(path, 40), "does not match its checksum"),
        (DATA, Path.unlink, "No such file"),
        (DATA, cut_short, "it was cut short; copy it anew"),
    ],
)
@pytest.mark.parametrize("subcommand", ["inspect", "tables", "run"])
def test_damaged_checkpoint_exits_3_and_names_the_file(
    command: Command,
    recipe: Recipe,
    movies: TracedCheckpoint,
    tmp_path: Path,
    subcommand: str,
    file: str,
    damage: Callable[[Path], None],
    told: str,
) -> None:
    for each in (INDEX, DATA):
        shutil.copy(movies.prefix.parent / each, tmp_path)
    damage(tmp_path / file)
    project = write_project(tmp_path, changed(recipe, "checkpoint.path", "ckpt-3"))
    arguments = {
        "inspect": [tmp_path / "ckpt-3"],
        "tables": [tmp_path / "ckpt-3", tmp_path / "bundles"],
    }
    done = command(subcommand, *arguments.get(subcommand, [project]), "--json")
    assert done.code == 3
    assert done.out == "" or file == DATA  # `inspect` tells what it could read
    assert told in done.message
    assert "ckpt-3" in done.message
    assert visible(tmp_path / "bundles") == []


@pytest.mark.parametrize(
    "variable", ["embedding/_tpu_embedding/users", "query_tower/layer_with_weights-0/kernel"]
)
def test_bit_flip_in_a_stored_variable_exits_3_and_names_it(
    command: Command, recipe: Recipe, movies: TracedCheckpoint, tmp_path: Path, variable: str
) -> None:
    for each in (INDEX, DATA):
        shutil.copy(movies.prefix.parent / each, tmp_path)
    held = (
        open_checkpoint(movies.prefix)
        .read_all(f"model/{variable}/.ATTRIBUTES/VARIABLE_VALUE")
        .tobytes()
    )
    flipped(tmp_path / DATA, (tmp_path / DATA).read_bytes().index(held) + 5)
    project = write_project(tmp_path, changed(recipe, "checkpoint.path", "ckpt-3"))
    refused(command, project, 3, variable.rpartition("/")[2], "copy it anew")


def test_model_that_is_not_the_checkpoints_exits_3_and_names_its_variables(
    command: Command, recipe: Recipe, tmp_path: Path
) -> None:
    factory = "tower_models.py:build_movies_without_head"
    project = write_project(tmp_path, changed(recipe, "code.factory", factory))
    refused(
        command,
        project,
        3,
        "head.kernel is float32 [24, 3] in the model (tower_models.py:",
        "head.bias",
    )
    project = write_project(tmp_path, changed(recipe, "checkpoint.object_path", ""))
    refused(
        command,
        project,
        3,
        "not at the top of checkpoint",
        'write checkpoint.object_path = "model"',
    )
    project = write_project(tmp_path, changed(recipe, "checkpoint.object_path", "modle"))
    refused(command, project, 3, "there is no 'modle' among model, step")


# What is not what was trained: 5; nothing is published, what is finished is kept.


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
    other, _ = save_checkpoint(movies_recipe(), tmp_path, seed=6)
    done = command("verify", undisturbed, "--checkpoint", other)
    assert (done.code, "row" in done.message) == (5, True)
    bundle = shutil.copytree(undisturbed, tmp_path / "bundle")
    flipped(bundle / TOWER, 100)
    done = command("verify", bundle)
    assert (done.code, f"file {TOWER!r} differs from its checksum" in done.message) == (5, True)
