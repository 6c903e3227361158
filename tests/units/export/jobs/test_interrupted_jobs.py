"""A job that is killed, interrupted or fails, and is begun again by the same command: it ends with
the bundle that an undisturbed run writes, and does again only what changed meanwhile.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.storage.staging import Staging
from tests.random_cases import moments
from tests.units.export.checkpoint.dump_files import sok_dump
from tests.units.export.commands import Command
from tests.units.export.damaged_indexes import (
    build_of_reversed_vectors,
    reverse_codes,
    swap_vectors,
)
from tests.units.export.forked_runs import ForkedRuns
from tests.units.export.killed_jobs import (
    KILLED,
    Job,
    journaled,
    noted_steps,
    resume,
    rewritten,
    tables_job,
    undisturbed,
)
from tests.units.export.movies_job import (
    Facts,
    Recipe,
    changed,
    edit,
    facts,
    hidden,
    run_arguments,
    visible,
    write_examples,
    write_project,
)
from tests.units.export.small_job import STEPS, TABLE_STEPS, with_tree
from tests.units.export.traced_models import IDS, save_checkpoint
from tests.units.export.traced_models import recipe as traced_recipe

FORMS = TABLE_STEPS + 2
"""The steps when two of the four forms of towers are noted."""
VOCABULARY = "vocabularies/movies.arrow"
STAGED = {
    TABLE_STEPS: ["tables/users/rows-00000-of-00001.bin", "corpora/movies/store.arrow"],
    STEPS: ["towers/query/compiled-f32.tflite", "indexes/movies/scann/dataset.npy"],
}


def damage(project: Path) -> None:
    """Flips a bit in some of the staged files, and removes another."""
    staged = project.parent / "bundles/small/.staging-1"
    for files in STAGED.values():
        for file in files:
            if (staged / file).exists():
                content = bytearray((staged / file).read_bytes())
                content[len(content) // 2] ^= 1
                (staged / file).write_bytes(content)
    (staged / VOCABULARY).unlink()


def replace(file: str, before: str, after: str) -> Callable[[Path], None]:
    """Returns the edit of a file, whose size and times may stay."""
    return lambda project: edit(project, file, before, after)


@dataclass(frozen=True)
class Meanwhile:
    """What happens between the kill of the small job and the same command.

    Attributes:
      steps: The steps that were noted when it was killed.
      change: Changes the project, or the files that are staged.
      again: The files, or the folders, of which some are written again.
    """

    steps: int
    change: Callable[[Path], None]
    again: set[str] = field(default_factory=set)


CODE = replace("plain_module.py", '* inputs["year"]', '+ inputs["year"]')
KEYS = replace("movie_ids.txt", "100\n107\n", "107\n100\n")
TITLE = replace("movies.csv", 'Movie ""3""', 'Other ""3""')
COUNT = replace("recipe.toml", '"count" = 24', '"count" = 25')
RECALL = replace(
    "recipe.toml", '_tower" = "candidate"', '_tower" = "candidate", "recall" = {"k" = 3}'
)
FILTERS = replace("recipe.toml", '"filters" = ["genres", "year"]', '"filters" = ["year", "title"]')
ALL_BUT_TABLES = {"towers", "indexes"}
UNCHANGED = {
    "nothing": Meanwhile(FORMS, lambda _: None),
    "damage of tables": Meanwhile(TABLE_STEPS, damage, {"tables", "corpora", "vocabularies"}),
    "damage of everything": Meanwhile(
        STEPS, damage, {"tables", "corpora", "vocabularies", "towers", "indexes"}
    ),
}
EDITED = {
    "keys": Meanwhile(STEPS, KEYS, {"vocabularies", "indexes"}),
    "code": Meanwhile(STEPS, CODE, ALL_BUT_TABLES),
    "early keys": Meanwhile(TABLE_STEPS, KEYS, {"vocabularies"}),
    "title": Meanwhile(STEPS, TITLE, {"corpora"}),
    "count": Meanwhile(STEPS, COUNT),
    "recall": Meanwhile(STEPS, RECALL),
    "filters": Meanwhile(STEPS, FILTERS),
}


@pytest.mark.parametrize("name", UNCHANGED)
def test_killed_job_resumes_to_the_same_bundle(
    forked_command: Command, copy_killed: Callable[[int], Path], small_facts: Facts, name: str
) -> None:
    project = copy_killed(UNCHANGED[name].steps)
    model = project.parent / "bundles/small"
    assert visible(model.parent) == []
    finished = journaled(model)
    UNCHANGED[name].change(project)
    done = forked_command(*run_arguments(project))
    assert done.code == 0, done.err
    assert folders(rewritten(finished, model / "1")) == UNCHANGED[name].again
    assert facts(model / "1") == small_facts
    assert hidden(model.parent) == []


def folders(files: set[str]) -> set[str]:
    return {file.partition("/")[0] for file in files}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("keys", "code"),
        *(
            pytest.param(name, marks=pytest.mark.nightly)
            for name in EDITED
            if name not in ("keys", "code")
        ),
    ],
)
def test_killed_job_of_which_an_input_was_edited_equals_a_new_one_and_keeps_its_tables(
    forked_command: Command,
    copy_killed: Callable[[int], Path],
    small_recipe: Recipe,
    small_facts: Facts,
    tmp_path: Path,
    name: str,
) -> None:
    """Contents decide what is done again, whatever the size and the times of a file."""
    project = copy_killed(EDITED[name].steps)
    model = project.parent / "bundles/small"
    finished = journaled(model)
    EDITED[name].change(project)
    resumed = forked_command(*run_arguments(project))
    assert resumed.code == 0, resumed.err
    again = folders(rewritten(existing(finished, model / "1"), model / "1"))
    assert EDITED[name].again <= again
    assert "tables" not in again

    fresh = write_project(tmp_path / "fresh", small_recipe)
    EDITED[name].change(fresh)
    done = forked_command(*run_arguments(fresh))
    assert done.code == 0, done.err
    assert facts(model / "1") == facts(fresh.parent / "bundles/small/1") != small_facts


def existing(finished: Mapping[str, Any], bundle: Path) -> dict[str, Any]:
    return {file: seen for file, seen in finished.items() if (bundle / file).exists()}


@pytest.mark.nightly
@pytest.mark.slow
def test_job_killed_at_every_step_resumes_to_the_same_bundle(
    forked: ForkedRuns, small_recipe: Recipe, small_facts: Facts, tmp_path: Path
) -> None:
    project = write_project(tmp_path / "project", small_recipe)
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


DTYPES = ("--dtype", "t2=int8", "--dtype", "t4=bfloat16")


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "apart"), [(DTYPES, 7), (("--workers", "2", *DTYPES), 11)], ids=["here", "pool"]
)
def test_tables_killed_before_any_change_of_a_file_resume_to_the_same_bundle(
    request: pytest.FixtureRequest,
    forked: ForkedRuns,
    options: tuple[str, ...],
    apart: int,
    tmp_path: Path,
) -> None:
    job: Job = tables_job(tmp_path / "checkpoint", 3000, *options)
    expected = undisturbed(forked, job, tmp_path / "expected")
    arguments = job.arguments(tmp_path / "bundles")
    for number in moments(request, apart):
        status = forked.run(arguments, tmp_path / "output", operation=number)
        if status == 0:
            break
        assert status in KILLED
        resume(forked, job, tmp_path, expected)
        shutil.rmtree(tmp_path / "bundles")
    assert number > 20


def test_frozen_or_interrupted_job_keeps_its_version_until_it_goes_on(
    forked: ForkedRuns, forked_command: Command, small_recipe: Recipe, small_facts: Facts,
    command: Command, tmp_path: Path,
) -> None:  # fmt: skip
    project = write_project(tmp_path / "project", small_recipe)
    root = project.parent / "bundles"
    pid = forked.start(run_arguments(project), tmp_path / "first", stops=1)
    assert forked.status() == -signal.SIGSTOP
    second = command(*run_arguments(project))
    assert (second.code, "is being written by another run" in second.err) == (6, True)
    os.kill(pid, signal.SIGINT)
    os.kill(pid, signal.SIGCONT)
    assert forked.status() == 130
    assert "run the same command again" in (tmp_path / "first").read_text()
    assert visible(root) == []

    resumed = forked_command(*run_arguments(project))
    assert resumed.code == 0, resumed.err
    assert facts(root / "small/1") == small_facts


def reverse_tree(staged: Path) -> None:
    build_of_reversed_vectors(staged)
    reverse_codes(staged)


@pytest.mark.parametrize("wrong", [swap_vectors, reverse_tree])
def test_staged_index_that_is_whole_and_wrong_is_made_again_after_the_check_that_finds_it(
    forked: ForkedRuns,
    forked_command: Command,
    small_recipe: Recipe,
    tmp_path: Path,
    wrong: Callable[[Path], None],
) -> None:
    project = write_project(tmp_path / "project", with_tree(small_recipe))
    model = project.parent / "bundles/small"
    # One step more than of an index of exact search: the codes.
    assert forked.run(run_arguments(project), tmp_path / "output", noted=STEPS + 1) in KILLED
    wrong(model / ".staging-1")
    steps = noted_steps(model)
    with Staging(model.parent, model.name, 1) as stage:
        for step, entry in steps.items():
            if "indexes/" in step:
                files = [stage.digests(file.path)[0] for file in entry.files]
                stage.finish(step, entry.key, entry.payload, files)
    finished = journaled(model)

    failed = forked_command(*run_arguments(project))
    assert (failed.code, visible(model.parent)) == (5, [])
    assert "keeps what is finished" in failed.message
    done = forked_command(*run_arguments(project))
    assert done.code == 0, done.err
    assert folders(rewritten(finished, model / "1")) == {"indexes"}


@pytest.mark.slow
def test_failed_job_of_a_dump_with_other_keys_for_its_rows_writes_vectors_anew(
    forked_command: Command, tmp_path: Path
) -> None:
    """The keys of a dumped table say which row is whose, and no other file of the job changes."""
    job = traced_recipe(
        "shared_call.py:build_keras_towers",
        {"user": IDS, "item": IDS},
        {
            "query": {"role": "query", "outputs": {"vector": "query"}},
            "candidate": {"role": "candidate", "outputs": {"vector": "candidate"}},
        },
    )
    prefix = save_checkpoint(job, tmp_path)
    keys = (1 << 40) + 7 * np.arange(200)
    rows = np.random.default_rng(6).normal(size=(200, 4)).astype(np.float32)
    sok_dump(tmp_path / "dump", "items", keys, rows)
    recipe = job.model_dump(mode="json", exclude_unset=True) | {
        "tables": {"items": {"dump": str(tmp_path / "dump")}},
        "features": {"item": {"role": "candidate", "ids": {"kind": "keyed"}}},
        "corpora": {"items": {"file": "items.csv", "id": "item", "features": {"item": "item"}}},
        "indexes": {
            "items": {
                "corpus": "items",
                "query_tower": "query",
                "candidate_tower": "candidate",
                "kind": "tree_ah",
                "parameters": {"num_leaves": 50, "leaves_to_search": 1, "reorder": 1},
                "recall": {"value": 1.0},
            }
        },
        "verify": {"examples": "examples.jsonl"},
    }
    recipe = changed(recipe, "checkpoint.path", str(prefix))
    recipe["code"]["table_threshold"] = 10
    project = write_project(tmp_path, recipe)
    (tmp_path / "items.csv").write_text("item\n" + "".join(f"{key}\n" for key in keys))
    write_examples(tmp_path, [{"user": n, "item": int(keys[n])} for n in range(20)])
    failed = forked_command("run", project)
    assert failed.code == 5, failed.err

    sok_dump(tmp_path / "dump", "items", np.roll(keys, 1), rows)
    write_project(tmp_path, changed(recipe, "indexes.items.recall.value", 0.01))
    done = forked_command("run", project)

    assert done.code == 0, done.err
    vectors = np.fromfile(tmp_path / "bundles/tested/1/indexes/items/vectors.bin", "<f4")
    np.testing.assert_allclose(vectors.reshape(200, 4), np.roll(rows, -1, axis=0), rtol=1e-6)
