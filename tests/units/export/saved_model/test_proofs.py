"""The proof of a written SavedModel: its results are compared with those of the original model, on
the recipe's examples.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.units.export.commands import Command, rejected
from tests.units.export.forked_runs import ForkedRuns
from tests.units.export.movies_job import (
    MOVIE_IDS,
    Recipe,
    changed,
    run_arguments,
    visible,
    write_examples,
    write_project,
)

DATA = "variables/variables.data-00000-of-00001"
EXAMPLES: list[dict[str, Any]] = [{"movie_id": movie} for movie in MOVIE_IDS[:3]]


@pytest.fixture
def small(small_recipe: Recipe) -> Recipe:
    """A recipe in which inputs may be left out."""
    page = changed(small_recipe, "output.tables", "inline")
    page = changed(page, "features.user_id", {"default": 2})
    page = changed(page, "features.year.default", 1.0)
    return changed(page, "verify", {"examples": "examples.jsonl"})


def test_examples_that_leave_inputs_out_are_compared(
    command: Command, small: Recipe, tmp_path: Path
) -> None:
    write_examples(tmp_path, EXAMPLES)
    proof = command("run", write_project(tmp_path, small), "--json").json["verification"]
    assert (proof["proved"], proof["examples"], proof["note"]) == (True, 3, "")
    assert proof["max_abs_error"].keys() == {"query", "candidate"}


def test_id_of_another_dtype_than_the_signature_takes_is_rejected(
    command: Command, small: Recipe, tmp_path: Path
) -> None:
    write_examples(tmp_path, [{**example, "user_id": "user 3"} for example in EXAMPLES])
    project = write_project(tmp_path, changed(small, "features.user_id.ids", {"kind": "hash"}))
    rejected(command, project, 2, "feature 'user_id'", "features.user_id.ids.dtype")


@pytest.mark.slow
def test_table_that_is_damaged_after_it_was_copied_is_found(
    forked: ForkedRuns, small: Recipe, tmp_path: Path
) -> None:
    write_examples(tmp_path, EXAMPLES)
    project = write_project(tmp_path, small)
    damages = {"after": f"{DATA} at 0", "file": DATA}
    status = forked.run(run_arguments(project), tmp_path / "output", damages=damages)
    output = (tmp_path / "output").read_text()
    assert (status, "tf.saved_model.load" in output) == (5, True), output
    assert visible(project.parent / "bundles") == []
