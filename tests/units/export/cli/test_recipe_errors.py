"""A recipe that cannot be meant, by its source: the exit code, and a message of one line that names
the key, the value and the remedy.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.units.export.commands import Command, rejected
from tests.units.export.movies_job import Recipe, changed, write_corpus, write_project


class Mistake(NamedTuple):
    """One row of a table.

    Attributes:
      code: The exit code.
      keys: What is set in the recipe of a job that succeeds, by the key; None takes it out.
      words: What the message says.
    """

    code: int
    keys: dict[str, Any]
    words: tuple[str, ...]


def mistake(code: int, key: str, value: Any, *words: str) -> Mistake:
    return Mistake(code, {key: value}, words)


# Mistakes that a recipe alone shows are tested in tests/units/export/recipe, in full.
RECIPE = [
    mistake(2, "towers.query.rolle", 1, "unknown key 'towers.query.rolle'; did you mean 'role'?"),
    mistake(2, "verify.count", "many", "verify.count: Input should be a valid integer"),
    mistake(2, "code", None, "key 'code' is missing"),
    mistake(2, "model", "../x", "'../x' is no name"),
    mistake(2, "towers.query.precisions", ["f64"], "'f32', 'int8' or 'bf16' (got 'f64')"),
    mistake(
        2,
        "verify.labels",
        {"click": "clicked"},
        "verify.labels names output 'click'; the towers have ",
    ),
    mistake(2, "verify.examples", "no.parquet", "no.parquet does not exist"),
    mistake(2, "vocabularies.movies.file", "no.txt", "no.txt does not exist"),
    mistake(
        2,
        "indexes.movies.corpus",
        "moviez",
        "indexes.movies.corpus names 'moviez' (did you mean 'movies'?); the recipe has movies",
    ),
    mistake(2, "indexes.movies.query_tower", "ranking", "towers with role = 'query': query"),
    mistake(2, "indexes.movies.parameters", {"leafs": 3}, "unknown key 'leafs'"),
    mistake(
        2,
        "indexes.movies.recall",
        {"value": 0.9},
        "indexes.movies.recall.value is a limit, which needs real queries",
    ),
]

FEATURES = [
    mistake(2, "features.history.default", "x", "features.history.default does not fit: ", "'x'"),
    mistake(2, "features.history.default", ["x"], "features.history.default does not fit: ", "'x'"),
    mistake(2, "features.year.default", "x", "features.year.default does not fit: ", "'x'"),
    mistake(
        2, "features.usr", {"role": "context"}, "features.usr: the recipe has no input of that"
    ),
    mistake(
        2,
        "features.movie_id.ids.vocabulary",
        "movie",
        "features.movie_id.ids.vocabulary is 'movie' (did you mean 'movies'?); the recipe's voc",
    ),
    mistake(
        2,
        "features.movie_id.ids.mask",
        "0",
        "features.movie_id.ids.mask is '0'; the vocabulary's keys are int64",
    ),
    mistake(
        2,
        "inputs.hour",
        {"dtype": "int64", "shape": [3], "pad": "x"},
        "inputs.hour.pad is 'x'; an integer was expected, as clients send it for this input",
    ),
    mistake(2, "vocabularies.movies.file", "movies.csv", "line 1: 'movieId,title,genres,year' is"),
    mistake(2, "features.hour.pad", 0, "unknown key 'features.hour.pad'; 'pad' is a key of inputs"),
    mistake(
        2, "inputs.hour.shape", 10, "inputs.hour.shape: a list was expected, such as [10] (got"
    ),
    mistake(2, "inputs.hour.shape", ["10"], "inputs.hour.shape.0: Input should be a valid integer"),
]

CORPUS = [
    mistake(2, "corpora.movies.file", "no.csv", "no.csv does not exist"),
    mistake(
        2, "corpora.movies.id", "id", "movies.csv has no column 'id'; it has movieId, title, genres"
    ),
    mistake(2, "corpora.movies.attributes", ["titel"], "movies.csv has no column 'titel'"),
    mistake(
        2,
        "corpora.movies.filters",
        ["genre"],
        "corpora.movies.filters: movies.csv has no column 'genre' (did you mean 'genres'?); it has",
    ),
    mistake(
        2,
        "corpora.movies.filters",
        "year",
        "corpora.movies.filters: a list was expected, such as [",
    ),
    mistake(2, "contexts", {"users": {"file": "no.csv", "id": "u"}}, "no.csv does not exist"),
    mistake(
        2,
        "contexts",
        {"users": {"file": "movies.csv", "id": "movieId", "filters": ["year"]}},
        "contexts.users.filters: only a corpus has filters",
    ),
    mistake(
        2, "corpora.movies.features.year", "yeer", "corpora.movies.features.year: movies.csv ha"
    ),
    mistake(
        2,
        "corpora.movies.features.yeer",
        "year",
        "corpora.movies.features.yeer: the recipe has no input of that name (did you mean 'year'?)",
    ),
    mistake(
        4,
        "corpora.movies.features.movie_id",
        "title",
        "corpora.movies.features.movie_id: movies.csv, column 'title', row 1: 'Movie \"0\", The'",
    ),
]

MODEL = [
    mistake(
        2,
        "corpora.movies.features",
        {"genres": "genres", "year": "year"},
        "corpora.movies.features has no column for movie_id, which tower 'candidate' of index "
        "'movies' reads; add it, as in features = { movie_id = \"COLUMN\" }, or set "
        "features.movie_id.default",
    ),
    mistake(2, "code.factory", "two_towers.py:build_movie", "has no function 'build_movie'"),
    mistake(2, "towers.query.inputs", ["userid"], "towers.query.inputs names 'userid' (did you me"),
    mistake(
        2, "towers.query.outputs", {"vector": "queries"}, "towers.query.outputs names 'queries'"
    ),
    mistake(2, "towers.ranking.formula", "score +", "towers.ranking.formula: "),
    mistake(
        2,
        "towers.ranking.formula",
        "2 * clicks",
        "towers.ranking.formula names 'clicks'; the tower has score",
    ),
    mistake(
        2, "towers.query.formula", "vector", "towers.query.formula: a query tower ranks nothing"
    ),
    mistake(
        2,
        "tables.userz",
        {"segment_rows": 5},
        "tables.userz: no tower reads a table of that name; they read genres_all",
    ),
    mistake(
        2,
        "features.movie_id.ids.first_row",
        1,
        "features.movie_id.ids",
        "vocabulary 'movies' reaches row 40, and table 'movies' has 40 rows: either the vocabulary",
        "so that the last 1 keys have no row",
    ),
    mistake(
        4,
        "towers.ranking.outputs",
        {"score": "query"},
        "output 'score' is 8 numbers for each candidate",
        'towers.ranking.outputs = { score = ["query", 0] }',
    ),
    Mistake(
        2,
        {
            **dict.fromkeys(("towers.query", "towers.candidate", "corpora", "indexes")),
            **{f"features.{name}.role": None for name in ("movie_id", "genres", "year")},
        },
        (
            "towers.ranking: all inputs of this ranking tower belong to the context",
            'write [features.NAME] role = "candidate"',
            "The tower reads genres, history, hour, movie_id, user_id",
        ),
    ),
]

CHECKPOINT = [
    mistake(
        3,
        "code.factory",
        "two_towers.py:build_movies_without_head",
        "head.kernel is float32 [24, 3] in the model (two_towers.py:",
        "head.bias",
    ),
    mistake(
        3,
        "checkpoint.object_path",
        "",
        "not at the top of checkpoint",
        'write checkpoint.object_path = "model"',
    ),
    mistake(3, "checkpoint.object_path", "modle", "there is no 'modle' among model, step"),
    mistake(
        4,
        "tables.users.key",
        "model/embedding/_tpu_embedding/user",
        "'model/embedding/_tpu_embedding/user'",
        "did you mean",
    ),
]


WITHOUT_MODEL = [*RECIPE, *FEATURES, *CORPUS]
MISTAKES = [*WITHOUT_MODEL, *MODEL, *CHECKPOINT]


@pytest.mark.parametrize("mistaken", MISTAKES, ids=[", ".join(row.keys) for row in MISTAKES])
def test_mistake_in_a_recipe_is_told_with_its_key_and_the_remedy(
    command: Command, recipe: Recipe, tmp_path: Path, mistaken: Mistake
) -> None:
    for key, value in mistaken.keys.items():
        recipe = changed(recipe, key, value)
    rejected(command, write_project(tmp_path, recipe), mistaken.code, *mistaken.words)


@pytest.mark.parametrize(
    "mistaken", WITHOUT_MODEL, ids=[", ".join(row.keys) for row in WITHOUT_MODEL]
)
def test_mistake_is_found_by_check_and_by_plan_before_the_model_is_built(
    command: Command, recipe: Recipe, tmp_path: Path, mistaken: Mistake
) -> None:
    for key, value in mistaken.keys.items():
        recipe = changed(recipe, key, value)
    project = write_project(tmp_path, recipe)
    (project.parent / "two_towers.py").write_text("raise AssertionError('model code runs')")
    rejected(command, project, mistaken.code, *mistaken.words, subcommand="plan")
    checked = command("check", project)
    assert checked.code == mistaken.code
    for words in mistaken.words:
        assert words in checked.out + checked.err


def test_plan_rejects_a_ranking_tower_without_candidates_as_a_run_does(
    command: Command, recipe: Recipe, tmp_path: Path
) -> None:
    alone = MODEL[-1]
    for key, value in alone.keys.items():
        recipe = changed(recipe, key, value)
    project = write_project(tmp_path, recipe)
    rejected(command, project, alone.code, *alone.words, subcommand="plan")


def test_check_lists_all_mistakes_without_model_code(command: Command, project: Path) -> None:
    assert "no mistake found" in command("check", project).out
    write_corpus(project.parent / "movies.csv", {5: {"year": ""}, 7: {"movieId": ""}})
    (project.parent / "movie_ids.txt").write_text("x\n")
    checked = command("check", project, "--json")
    assert checked.code == 2
    vocabulary, corpus = json.loads(checked.out)["mistakes"]
    assert "movie_ids.txt, line 1: 'x' is not an int64" in vocabulary
    assert corpus.startswith("corpora.movies.id: movies.csv, column 'movieId', row 8 is null")


def test_empty_cell_names_the_key_of_the_default(command: Command, project: Path) -> None:
    write_corpus(project.parent / "movies.csv", {5: {"year": ""}})
    words = (
        "corpora.movies.features.year: movies.csv, column 'year', row 6 is empty, and its feature "
        "has no default: fill in the cell, or set features.year.default"
    )
    rejected(command, project, 4, words, subcommand="plan")


def test_recipe_is_checked_without_a_framework(project: Path) -> None:
    code = (
        "import sys\nfrom export.cli.commands import app\n"
        f"app(['check', {str(project)!r}], standalone_mode=False)\n"
        "assert not {'tensorflow', 'jax', 'keras', 'torch'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_candidate_that_does_not_fit_exits_4_and_names_row_and_column(
    command: Command, project: Path
) -> None:
    write_corpus(project.parent / "movies.csv", {5: {"movieId": "100"}})
    output = "column 'movieId': id 100 stands in row 1 of movies.csv and row 6 of movies.csv"
    rejected(command, project, 4, "corpora.movies.id: ", output)
