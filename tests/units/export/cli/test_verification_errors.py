"""Exit code 5: what was written is not what was trained. Nothing is published."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.units.export.commands import Command, CommandResult, rejected
from tests.units.export.forked_runs import ForkedRuns
from tests.units.export.killed_jobs import journaled, rewritten
from tests.units.export.movies_job import (
    Recipe,
    changed,
    example_requests,
    facts,
    hidden,
    run_arguments,
    visible,
    write_examples,
    write_project,
)
from tests.units.export.small_job import save_small_recipe

TOWER = "towers/query/compiled-f32.tflite"
USERS = "tables/users/rows-00000-of-00001.bin"


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    return save_small_recipe(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def published(forked: ForkedRuns, recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = write_project(tmp_path_factory.mktemp("published") / "project", recipe)
    output = project.with_name("output")
    assert forked.run(run_arguments(project), output) == 0, output.read_text()
    return project.parent / "bundles/small/1"


def flipped(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x10
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (
            "towers.query",
            {"role": "query", "precisions": ["f32", "int8"], "max_abs_error": {"int8": 1e-6}},
            "values break towers.query.max_abs_error.int8",
        ),
        (
            "indexes.movies",
            {
                "kind": "tree_ah",
                "distance": "squared_l2",
                "parameters": {"num_leaves": 20, "leaves_to_search": 1, "reorder": 1},
                "recall": {"value": 1.0},
            },
            "the recipe requires 1.0",
        ),
    ],
)
def test_limit_that_is_not_reached_exits_5_and_publishes_nothing(
    command: Command, recipe: Recipe, tmp_path: Path, key: str, value: Any, words: str
) -> None:
    write_examples(tmp_path, example_requests())
    limited = changed(recipe, "verify.examples", "examples.jsonl")
    section, name = key.split(".")
    limited[section][name] |= value
    project = write_project(tmp_path, limited)
    rejected(command, project, 5, words, "keeps what is finished")
    done = command("clean", project.parent / "bundles")
    assert (done.code, hidden(project.parent / "bundles")) == (0, [])
    assert "removed" in done.out


@pytest.mark.parametrize(
    ("after", "file", "words"),
    [
        (TOWER, TOWER, f"file {TOWER!r} changed after it was written"),
        (TOWER, USERS, "tower 'query', SavedModel f32"),
        ("indexes/movies/scann", USERS, "table 'users'"),
    ],
)
def test_file_that_is_damaged_between_steps_exits_5_and_publishes_nothing(
    forked: ForkedRuns,
    forked_command: Command,
    recipe: Recipe,
    published: Path,
    tmp_path: Path,
    after: str,
    file: str,
    words: str,
) -> None:
    project = write_project(tmp_path / "project", recipe)
    model = project.parent / "bundles/small"
    output = tmp_path / "output"
    status = forked.run(run_arguments(project), output, damages={"after": after, "file": file})
    assert status == 5
    assert words in CommandResult(5, "", output.read_text()).message
    assert visible(model.parent) == []
    finished = journaled(model)

    done = forked_command(*run_arguments(project))

    assert done.code == 0, done.err
    assert rewritten(finished, model / "1") <= {file}
    assert facts(model / "1") == facts(published)
    assert hidden(model.parent) == []


def test_verify_of_a_damaged_bundle_or_against_another_checkpoint_exits_5(
    command: Command, published: Path, tmp_path: Path
) -> None:
    other_checkpoint = save_small_recipe(tmp_path / "other", seed=6)["checkpoint"]["path"]
    done = command("verify", published, "--checkpoint", other_checkpoint)
    assert (done.code, "row" in done.message) == (5, True)
    bundle = shutil.copytree(published, tmp_path / "bundle")
    flipped(bundle / TOWER, 100)
    done = command("verify", bundle)
    assert (done.code, f"file {TOWER!r} differs from its checksum" in done.message) == (5, True)
