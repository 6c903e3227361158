"""A job whose checks fail publishes nothing, keeps what is right, and makes the rest again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from bundle.storage import catalog
from bundle.storage.staging import Staging
from tests.units.export.commands import Command
from tests.units.export.damaged_indexes import (
    build_of_reversed_vectors,
    reverse_codes,
    swap_vectors,
)
from tests.units.export.forked_runs import ForkedRuns
from tests.units.export.killed_jobs import KILLED, journaled, noted_steps, rewritten
from tests.units.export.movies_job import (
    Recipe,
    changed,
    example_requests,
    run_arguments,
    visible,
    write_examples,
    write_project,
)
from tests.units.export.small_job import STEPS, TABLE_STEPS, with_tree

CODES = "indexes/movies/scann/hashed_dataset.npy"


def with_keys(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    for key, value in values.items():
        recipe = changed(recipe, key, value)
    return recipe


def with_int8(limit: float) -> dict[str, Any]:
    return {"towers.query.precisions": ["f32", "int8"], "towers.query.max_abs_error.int8": limit}


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    ("failing", "mended", "words", "forms"),
    [
        (with_int8(1e-12), with_int8(1.0), "tower 'query'", 5),
        ({"verify.examples": "examples.jsonl"}, {}, "verify.examples", 4),
    ],
)
def test_check_that_fails_keeps_what_is_finished(
    forked_command: Command,
    copy_killed: Callable[[int], Path],
    small_recipe: Recipe,
    failing: Mapping[str, Any],
    mended: Mapping[str, Any],
    words: str,
    forms: int,
) -> None:
    directory = copy_killed(TABLE_STEPS).parent
    model = directory / "bundles/small"
    tables = journaled(model)
    first, *later_requests = example_requests()
    write_examples(directory, [first | {"year": float("nan")}, *later_requests])
    project = write_project(directory, with_keys(small_recipe, failing))

    failed = forked_command(*run_arguments(project))

    assert failed.code == 5
    assert words in failed.message
    assert f"{model / '.staging-1'} keeps what is finished" in failed.message
    assert visible(model.parent) == []
    assert len(noted_steps(model)) == TABLE_STEPS + forms
    assert rewritten(tables, model / ".staging-1") == set()
    finished = journaled(model)

    write_project(directory, with_keys(small_recipe, mended))
    done = forked_command(*run_arguments(project))

    assert done.code == 0, done.err
    assert rewritten(finished, model / "1") == set()


@pytest.mark.nightly
@pytest.mark.slow
def test_run_whose_recall_is_too_low_keeps_the_index_for_another_limit(
    forked_command: Command, copy_killed: Callable[[int], Path], small_recipe: Recipe
) -> None:
    directory = copy_killed(STEPS).parent
    model = directory / "bundles/small"
    recipe = changed(small_recipe, "verify.examples", "examples.jsonl")
    write_examples(directory, example_requests())
    project = write_project(directory, with_tree(recipe, value=1.0))
    failed = forked_command(*run_arguments(project))
    assert failed.code == 5
    assert "recall@10 is 0." in failed.message
    built = (model / ".staging-1" / CODES).stat().st_ino

    write_examples(directory, example_requests()[1:])
    lower = with_tree(recipe, value=0.01)
    lower["indexes"]["movies"]["parameters"]["leaves_to_search"] = 2
    write_project(directory, lower)
    done = forked_command(*run_arguments(project))

    assert done.code == 0, done.err
    assert (model / "1" / CODES).stat().st_ino == built
    index = catalog.read_manifest(model / "1").indexes["movies"]
    assert index.parameters["leaves_to_search"] == 2


def build_and_encode_reversed_vectors(staged: Path) -> None:
    build_of_reversed_vectors(staged)
    reverse_codes(staged)


@pytest.fixture(scope="module")
def killed_tree(
    small_recipe: Recipe, forked: ForkedRuns, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The project of a job with a tree that was killed when its last step was noted."""
    directory = tmp_path_factory.mktemp("tree")
    project = write_project(directory / "project", with_tree(small_recipe))
    # One step more than of an index of exact search: the codes.
    status = forked.run(run_arguments(project), directory / "output", noted=STEPS + 1)
    assert status in KILLED
    return project


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (swap_vectors, "candidate 121 (row 4 of corpus 'movies') is not what the original model"),
        (
            build_and_encode_reversed_vectors,
            "it was built from other vectors, or in another order",
        ),
    ],
)
def test_run_after_a_failed_check_of_an_index_makes_it_again(
    forked_command: Command,
    killed_tree: Path,
    tmp_path: Path,
    damage: Callable[[Path], None],
    words: str,
) -> None:
    directory = shutil.copytree(killed_tree.parent, tmp_path / "project")
    project = directory / killed_tree.name
    model = directory / "bundles/small"
    damage(model / ".staging-1")
    steps = noted_steps(model)
    with Staging(model.parent, model.name, 1) as stage:  # what is wrong is finished, and whole
        for step, entry in steps.items():
            if "indexes/" in step:
                files = [stage.digests(file.path)[0] for file in entry.files]
                stage.finish(step, entry.key, entry.payload, files)
    finished = journaled(model)

    failed = forked_command(*run_arguments(project))
    assert (failed.code, words in failed.message) == (5, True)
    assert visible(model.parent) == []
    done = forked_command(*run_arguments(project))

    assert done.code == 0, done.err
    made_again = rewritten(finished, model / "1")
    assert {path.partition("/")[0] for path in made_again} == {"indexes"}
