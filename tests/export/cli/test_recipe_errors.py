"""A recipe that cannot be meant, by its source: the exit code, and a message of one line that names
the key, the value and the remedy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.export.commands import Command, rejected
from tests.export.movies_job import Recipe, changed, write_corpus, write_project


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


# Mistakes that a recipe alone shows are tested in tests/export/recipe, in full.
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
        "indexes.movies.corpus names 'moviez'; the recipe has movies",
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

CORPUS = [
    mistake(2, "corpora.movies.file", "no.csv", "no.csv does not exist"),
    mistake(
        2, "corpora.movies.id", "id", "movies.csv has no column 'id'; it has movieId, title, genres"
    ),
    mistake(2, "corpora.movies.attributes", ["titel"], "movies.csv has no column 'titel'"),
    mistake(2, "corpora.movies.filters", ["genre"], "movies.csv has no column 'genre'; it has mov"),
    mistake(
        2, "corpora.movies.filters", "year", "corpora.movies.filters: Input should be a valid tuple"
    ),
    mistake(
        2,
        "corpora.movies.features",
        {"genres": "genres", "year": "year"},
        "corpora.movies.features has no column for movie_id, which tower 'candidate' of index "
        "'movies' reads; add it, as in features = { movie_id = \"COLUMN\" }, or set "
        "features.movie_id.default",
    ),
    mistake(2, "contexts", {"users": {"file": "no.csv", "id": "u"}}, "no.csv does not exist"),
    mistake(
        2,
        "contexts",
        {"users": {"file": "movies.csv", "id": "movieId", "filters": ["year"]}},
        "contexts.users.filters: only a corpus has filters",
    ),
]

MODEL = [
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
        "features.usr",
        {"role": "context"},
        "features.usr: no tower takes a feature of that name",
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


MISTAKES = [*RECIPE, *CORPUS, *MODEL, *CHECKPOINT]


@pytest.mark.parametrize("mistaken", MISTAKES, ids=[", ".join(row.keys) for row in MISTAKES])
def test_mistake_in_a_recipe_is_told_with_its_key_and_the_remedy(
    command: Command, recipe: Recipe, tmp_path: Path, mistaken: Mistake
) -> None:
    for key, value in mistaken.keys.items():
        recipe = changed(recipe, key, value)
    rejected(command, write_project(tmp_path, recipe), mistaken.code, *mistaken.words)


def test_plan_rejects_a_ranking_tower_without_candidates_as_a_run_does(
    command: Command, recipe: Recipe, tmp_path: Path
) -> None:
    alone = MODEL[-1]
    for key, value in alone.keys.items():
        recipe = changed(recipe, key, value)
    project = write_project(tmp_path, recipe)
    rejected(command, project, alone.code, *alone.words, subcommand="plan")


def test_candidate_that_does_not_fit_exits_4_and_names_row_and_column(
    command: Command, project: Path
) -> None:
    write_corpus(project.parent / "movies.csv", {5: {"movieId": "100"}})
    output = "column 'movieId': id 100 stands in row 1 of movies.csv and row 6 of movies.csv"
    rejected(command, project, 4, "corpus 'movies'", output)
