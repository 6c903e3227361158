"""Exit code 2: an argument, a setting or a key of the recipe that cannot be meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.export.commands import Command, refused
from tests.export.movies_job import Recipe, changed, write_project


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("towers.query.rolle", "query", "unknown key 'towers.query.rolle'; did you mean 'role'?"),
        ("indices", {}, "unknown key 'indices'; did you mean 'indexes'?"),
        ("corpora.movies.idd", "x", "unknown key 'corpora.movies.idd'; did you mean 'id'?"),
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
            "towers.ranking.overlap_min",
            {"bf16": 0.9},
            "towers.ranking.overlap_min limits 'bf16'",
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
            "contexts.users.filters: only a corpus has filters",
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
            {"segment_rows": 5},
            "tables.userz: no tower reads a table of that name; they read genres_all",
        ),
        ("vocabularies.movies.file", "no.txt", "no.txt does not exist"),
        ("corpora.movies.file", "no.csv", "no.csv does not exist"),
        ("corpora.movies.id", "id", "movies.csv has no column 'id'; it has movieId"),
        ("corpora.movies.attributes", ["titel"], "movies.csv has no column 'titel'"),
        (
            "corpora.movies.features",
            {"genres": "genres", "year": "year"},
            "corpora.movies.features has no column for movie_id, which tower 'candidate' of index "
            "'movies' reads; add it, as in features = { movie_id = \"COLUMN\" }, or set "
            "features.movie_id.default",
        ),
        (
            "corpora.movies.filters",
            ["genre"],
            "movies.csv has no column 'genre'; it has movieId, title, genres",
        ),
        (
            "corpora.movies.filters",
            "year",
            "corpora.movies.filters: Input should be a valid tuple",
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
        ("code.factory", "two_towers.py:build_movie", "has no function 'build_movie'"),
    ],
)
def test_invalid_recipe_exits_2_and_names_the_key(
    command: Command, recipe: Recipe, tmp_path: Path, key: str, value: Any, told: str
) -> None:
    refused(command, write_project(tmp_path, changed(recipe, key, value)), 2, told)


@pytest.mark.parametrize("subcommand", ["plan", "run"])
def test_ranking_tower_without_an_input_of_the_candidate_exits_2_with_the_remedy(
    command: Command, recipe: Recipe, tmp_path: Path, subcommand: str
) -> None:
    alone = recipe
    for key in ("towers.query", "towers.candidate", "corpora", "indexes"):
        alone = changed(alone, key, None)
    for name in ("movie_id", "genres", "year"):
        alone = changed(alone, f"features.{name}.role", None)

    refused(
        command,
        write_project(tmp_path, alone),
        2,
        "towers.ranking: all inputs of this ranking tower belong to the context",
        'write [features.NAME] role = "candidate"',
        "The tower reads genres, history, hour, movie_id, user_id",
        subcommand=subcommand,
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a = = 1", "line 1"),
        ('[tables.users]\nkey = "a"\n[tables.users]\nkey = "b"\n', "Cannot declare"),
        ("a = " + "[" * 100_000, "nested"),
    ],
)
def test_recipe_with_a_syntax_error_exits_2_and_names_the_line(
    command: Command, tmp_path: Path, text: str, told: str
) -> None:
    (tmp_path / "recipe.toml").write_text(text)
    refused(command, tmp_path / "recipe.toml", 2, "recipe.toml cannot be read", told)
    refused(command, tmp_path / "nowhere.toml", 2, "does not exist")


def test_run_has_no_option_that_it_always_rejects(command: Command, project: Path) -> None:
    assert "--shards" in command("plan", "--help").out
    assert "--shard" not in command("run", "--help").out
    done = command("run", project, "--shards", "3")
    assert (done.code, "--shards" in done.message) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run"], ""),
        (["tables", "c", "o", "--only", "a,,b"], "--only 'a,,b'"),
        (["tables", "c", "o", "--tables", "inline"], "--tables"),
        (["explain", "recipe.toml", "--tables", "inline"], "--tables"),
        (["tables", "c", "o", "--budget-bytes", "5"], "--budget-bytes"),
        (["rum"], "rum"),
        (["verify", "/"], "has no manifest.json"),
        (["inspect", ""], "an empty path was given"),
        (["inspect", "somewhere", "--tabel", "a=b"], "`rowcast-export inspect --help`"),
    ],
)
def test_invalid_arguments_exit_2(command: Command, arguments: list[str], told: str) -> None:
    done = command(*arguments)
    assert (done.code, done.out) == (2, "")
    assert told in done.message


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("BUDGET_BYTES", "budget_bytes"),
        (
            "WORKRES",
            "sets ROWCAST_EXPORT_WORKRES, which is not a setting; the settings are "
            "ROWCAST_EXPORT_BUDGET_BYTES, ",
        ),
    ],
)
def test_invalid_environment_variables_exit_2(
    command: Command, project: Path, monkeypatch: pytest.MonkeyPatch, name: str, told: str
) -> None:
    monkeypatch.setenv(f"ROWCAST_EXPORT_{name}", "5")
    refused(command, project, 2, told)


def test_vocabulary_that_reaches_beyond_its_table_exits_2(
    command: Command, recipe: Recipe, tmp_path: Path
) -> None:
    later = changed(recipe, "features.movie_id.ids.first_row", 1)
    told = "vocabulary 'movies' reaches row 40, table 'movies' has 40 rows"
    refused(command, write_project(tmp_path, later), 2, "features.movie_id.ids", told)
