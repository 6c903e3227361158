"""Recipes that cannot be meant, exit 2, and what cannot be converted, exit 4: the key, row or name is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.export.commands import Command, refused
from tests.export.movies_job import Recipe, changed, write_corpus, write_project
from tests.export.traced_models import TracedCheckpoint


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("towers.query.rolle", "query", "unknown key 'towers.query.rolle'; did you mean 'role'?"),
        ("indices", {}, "unknown key 'indices'; did you mean 'indexes'?"),
        ("candidates.movies.idd", "x", "unknown key 'candidates.movies.idd'; did you mean 'id'?"),
        ("verify.count", "many", "verify.count: Input should be a valid integer"),
        ("towers.query.precisions", ["f64"], "'f32', 'int8' or 'bf16' (got 'f64')"),
        ("towers.ranking.formula", "score +", "towers.ranking.formula: "),
        (
            "towers.ranking.formula",
            "2 * clicks",
            "towers.ranking.formula names 'clicks'; the tower has score",
        ),
        ("towers.query.formula", "vector", "towers.query.formula: a query tower ranks nothing"),
        (
            "towers.ranking.kendall_tau_min",
            {"bf16": 0.9},
            "towers.ranking.kendall_tau_min limits 'bf16'",
        ),
        (
            "towers.ranking.auc_loss_max",
            {"int8": 0.1},
            "needs labels: name their columns in verify.labels",
        ),
        (
            "verify.labels",
            {"click": "clicked"},
            "verify.labels names output 'click'; the towers have ",
        ),
        (
            "verify.labels",
            {"score": "clicked"},
            "verify.labels names columns of verify.examples, which is not given",
        ),
        (
            "verify.expected",
            {"score": "seen"},
            "verify.expected names columns of verify.examples, which is not given",
        ),
        (
            "indexes.movies.recall",
            {"value": 0.9},
            "indexes.movies.recall.value is a limit, which needs real queries",
        ),
        (
            "verify.expected",
            {"vector": "seen"},
            "towers query, candidate have it; write 'query.vector'",
        ),
        ("contexts", {"users": {"file": "no.csv", "id": "userId"}}, "no.csv does not exist"),
        (
            "contexts",
            {"users": {"file": "movies.csv", "id": "movieId", "filters": ["year"]}},
            "contexts.users.filters: filters are of candidates",
        ),
        ("code", None, "key 'code' is missing"),
        ("model", "../x", "'../x' is no name"),
        ("towers.query.inputs", ["userid"], "towers.query.inputs names 'userid'"),
        ("towers.query.outputs", {"vector": "queries"}, "towers.query.outputs names 'queries'"),
        (
            "features.usr",
            {"role": "context"},
            "features.usr: no tower takes a feature of that name",
        ),
        (
            "tables.userz",
            {"shard_rows": 5},
            "tables.userz: no tower reads a table of that name; they read genres_all",
        ),
        ("vocabularies.movies.file", "no.txt", "no.txt does not exist"),
        ("candidates.movies.file", "no.csv", "no.csv does not exist"),
        ("candidates.movies.id", "id", "movies.csv has no column 'id'; it has movieId"),
        ("candidates.movies.attributes", ["titel"], "movies.csv has no column 'titel'"),
        (
            "candidates.movies.filters",
            ["genre"],
            "movies.csv has no column 'genre'; it has movieId, title, genres",
        ),
        (
            "candidates.movies.filters",
            "year",
            "candidates.movies.filters: Input should be a valid tuple",
        ),
        (
            "indexes.movies.corpus",
            "moviez",
            "indexes.movies.corpus names 'moviez'; the recipe has movies",
        ),
        ("indexes.movies.query_tower", "ranking", "towers with role = 'query': query"),
        ("indexes.movies.parameters", {"leafs": 3}, "unknown key 'leafs'"),
        ("towers.ranking.max_abs_error", {}, "towers.ranking.max_abs_error.int8"),
        ("verify.examples", "no.parquet", "no.parquet does not exist"),
        ("code.factory", "tower_models.py:build_movie", "has no function 'build_movie'"),
    ],
)
def test_recipe_that_cannot_be_meant_exits_2_and_names_the_key(
    command: Command, recipe: Recipe, tmp_path: Path, key: str, value: Any, told: str
) -> None:
    refused(command, write_project(tmp_path, changed(recipe, key, value)), 2, told)


def test_ranking_output_of_several_numbers_exits_4_and_tells_how_to_name_them(
    command: Command, recipe: Recipe, tmp_path: Path
) -> None:
    project = write_project(tmp_path, changed(recipe, "towers.ranking.outputs", {"score": "query"}))
    refused(
        command,
        project,
        4,
        "output 'score' is 8 numbers for each candidate",
        "'first': scores[:, 0]",
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a = = 1", "line 1"),
        ('[tables.users]\nkey = "a"\n[tables.users]\nkey = "b"\n', "Cannot declare"),
        ("a = " + "[" * 100_000, "nested"),
    ],
)
def test_recipe_that_is_no_toml_exits_2_and_says_where(
    command: Command, tmp_path: Path, text: str, told: str
) -> None:
    (tmp_path / "recipe.toml").write_text(text)
    refused(command, tmp_path / "recipe.toml", 2, "recipe.toml cannot be read", told)
    refused(command, tmp_path / "nowhere.toml", 2, "does not exist")


def test_candidate_that_does_not_fit_exits_4_and_names_row_and_column(
    command: Command, project: Path
) -> None:
    write_corpus(project.parent / "movies.csv", {5: {"movieId": "100"}})
    told = "column 'movieId': id 100 stands in row 1 of movies.csv and row 6 of movies.csv"
    refused(command, project, 4, "corpus 'movies'", told)


def test_table_that_is_not_in_the_checkpoint_exits_4_with_the_nearest(
    command: Command, recipe: Recipe, movies: TracedCheckpoint, tmp_path: Path
) -> None:
    key = "model/embedding/_tpu_embedding/user"
    refused(
        command,
        write_project(tmp_path, changed(recipe, "tables.users.key", key)),
        4,
        repr(key),
        "did you mean",
    )
    done = command("tables", movies.prefix, tmp_path, "--table", f"users={key}")
    assert done.code == 4
    assert "did you mean 'model/embedding/_tpu_embedding/users'?" in done.message
