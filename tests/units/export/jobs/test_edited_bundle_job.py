"""A job that was killed and is resumed after an edit of what it reads: contents decide what is done
again, whatever the size and the times of a file.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.units.export.checkpoint.dump_files import sok_dump
from tests.units.export.commands import Command
from tests.units.export.killed_jobs import journaled, rewritten
from tests.units.export.movies_job import (
    Facts,
    Recipe,
    changed,
    edit,
    facts,
    run_arguments,
    write_examples,
    write_project,
)
from tests.units.export.small_job import STEPS, TABLE_STEPS
from tests.units.export.traced_models import IDS, save_checkpoint
from tests.units.export.traced_models import recipe as traced_recipe

VOCABULARY = ("movie_ids.txt", "100\n107\n", "107\n100\n")
TITLE = ("movies.csv", 'Movie ""3""', 'Other ""3""')
COUNT = ("recipe.toml", '"count" = 24', '"count" = 25')
RECALL = ("recipe.toml", '_tower" = "candidate"', '_tower" = "candidate", "recall" = {"k" = 3}')
FILTERS = ("recipe.toml", '"filters" = ["genres", "year"]', '"filters" = ["year", "title"]')
CODE = ("plain_module.py", '* inputs["year"]', '+ inputs["year"]')


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "steps"),
    [
        (VOCABULARY, TABLE_STEPS),
        (VOCABULARY, STEPS),
        (CODE, STEPS),
        *[
            pytest.param(change, STEPS, marks=pytest.mark.nightly)
            for change in (TITLE, COUNT, RECALL, FILTERS)
        ],
    ],
)
def test_run_after_an_edit_redoes_what_changed_and_keeps_the_tables(
    forked_command: Command,
    copy_killed: Callable[[int], Path],
    small_recipe: Recipe,
    small_facts: Facts,
    tmp_path: Path,
    change: tuple[str, str, str],
    steps: int,
) -> None:
    project = copy_killed(steps)
    model = project.parent / "bundles/small"
    finished = journaled(model)
    tables = {path: seen for path, seen in finished.items() if path.startswith("tables/")}
    edit(project, *change)
    resumed = forked_command(*run_arguments(project))
    assert resumed.code == 0, resumed.err
    assert len(tables) == 2
    assert rewritten(tables, model / "1") == set()

    fresh = write_project(tmp_path / "fresh", small_recipe)
    edit(fresh, *change)
    done = forked_command(*run_arguments(fresh))
    assert done.code == 0, done.err
    assert facts(model / "1") == facts(fresh.parent / "bundles/small/1") != small_facts


def test_run_after_other_keys_of_the_same_rows_writes_vectors_anew(
    forked_command: Command, tmp_path: Path
) -> None:
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
