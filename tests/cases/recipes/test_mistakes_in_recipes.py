"""Mistakes in the recipe of a job that succeeds: what each gets from `run`, or from `check` and
`plan` where it is found without the model's code.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from export.recipe.schema import read_recipe
from tests.units.export.commands import Command, rejected
from tests.units.export.movies_job import (
    MOVIE_IDS,
    Recipe,
    changed,
    example_requests,
    write_corpus,
    write_examples,
    write_project,
)

Keys = dict[str, Any]
"""What is set in the recipe, by the key; None takes it out."""


class Mistake(NamedTuple):
    """What is wrong, the exit code, and what the message says: the key, the value, the remedy."""

    keys: Keys
    code: int
    words: tuple[str, ...]


def mistake(key: str, value: Any, *words: str, code: int = 2) -> Mistake:
    return Mistake({key: value}, code, words)


def of_examples(keys: Keys, *words: str) -> Mistake:
    return Mistake({"verify.examples": "examples.jsonl", **keys}, 2, words)


EXAMPLES = {"examples": "examples.jsonl"}
ALONE = {
    **dict.fromkeys(("towers.query", "towers.candidate", "corpora", "indexes")),
    **{f"features.{name}.role": None for name in ("movie_id", "genres", "year")},
}
LONG = {"dtype": "int64", "shape": [3]}
LIST = {"corpus": "movies", "file": "movies.csv", "id": "movieId"}
SEGMENTS = {"segment": "genres"}
INLINE = {"root": "bundles", "tables": "inline"}

WITHOUT_MODEL = [
    mistake("towers.query.rolle", 1, "towers.query.rolle", "'role'"),
    mistake("features.hour.pad", 0, "features.hour.pad", "key of inputs"),
    mistake("inputs.hour.shape", 10, "inputs.hour.shape", "such as [10]"),
    mistake("inputs.hour.shape", ["10"], "inputs.hour.shape", "'10'"),
    mistake("features.user_id.ids", "hash", "features.user_id.ids", 'such as { kind = "hash" }'),
    mistake("features.user_id.ids", {"kind": "hashed"}, "features.user_id.ids", "'hash'"),
    mistake("checkpoint", "ckpt", 'such as { path = "ckpt" }'),
    mistake("output.root", "s4://bucket/bundles", "'s4'", "s3, gs and file"),
    mistake("indexes.movies.engine", "annoy", "'auto', 'scann' or 'faiss'"),
    mistake("features.hour.unknown", "refuse", 'such as { rule = "refuse" }'),
    mistake("model", "../x", "'../x'"),
    mistake("inputs.hour", {**LONG, "pad": "x"}, "inputs.hour.pad", "'x'"),
    mistake("inputs.hour", {**LONG, "pad": [1]}, "inputs.hour.pad: ", "a valid number or a", "[1]"),
    mistake("inputs.hour", {**LONG, "kind": "ragged", "pad": 0}, "inputs.hour", "'pad'"),
    mistake("inputs.hour", {"dtype": "int64", "keep": "last"}, "inputs.hour", "'keep'"),
    mistake("inputs.hour", {**LONG, "pad_side": "start"}, "inputs.hour", "requires 'pad'"),
    mistake("inputs.hour", {"dtype": "bool", "kind": "ragged"}, "inputs.hour", "'int32'"),
    mistake("inputs", {"a": {"dtype": "int64"}, "a.b": {"dtype": "int64"}}, "'a.b'", "inside 'a'"),
    mistake("inputs", {"a.": {"dtype": "int64"}}, "'a.'", "empty level"),
    mistake("vocabularies.movies.file", "no.txt", "no.txt"),
    mistake("vocabularies.movies.file", "movie.csv", "movie.csv", "did you mean 'movies.csv'?"),
    mistake("tables.a b", {}, "tables.a b: 'a b' is no name"),
    mistake("vocabularies.movies.file", "movies.csv", "line 1", "'movieId,title,genres,year'"),
    mistake("features.usr", {"role": "context"}, "features.usr", "no input"),
    mistake("features.history.default", "x", "features.history.default", "'x'"),
    mistake("features.history.default", ["x"], "features.history.default", "'x'"),
    mistake("features.year.default", "x", "features.year.default", "'x'"),
    mistake("features.movie_id.ids.vocabulary", "movie", "ids.vocabulary", "'movies'"),
    mistake("features.movie_id.ids.mask", "0", "features.movie_id.ids.mask", "int64"),
    mistake("features.movie_id.ids.oov_buckets", 1, "movie_id.ids", "'oov_first_row'"),
    # Parts of towers, and what is verified.
    mistake("towers.query.inputs", ["userid"], "towers.query.inputs", "'user_id'"),
    mistake("towers.query.arguments", [True], "towers.query.arguments", "name of an input"),
    mistake("towers.ranking.result", "skore", "towers.ranking.result", "'score'"),
    mistake("towers.ranking.formula", "score +", "towers.ranking.formula"),
    mistake("towers.ranking.formula", "2 * clicks", "towers.ranking.formula", "'clicks'"),
    mistake("towers.query.formula", "vector", "towers.query.formula", "ranks nothing"),
    mistake("towers.query.precisions", ["f64"], "towers.query.precisions", "'f64'"),
    mistake("towers.query.precisions", ["int8"], "towers.query.max_abs_error.int8"),
    mistake("towers.query.serve", "int8", "towers.query.serve", "'int8'"),
    mistake("towers.query.overlap_min", {"int8": 0.9}, "towers.query.overlap_min", "'int8'"),
    mistake("verify.examples", "no.parquet", "no.parquet"),
    mistake("verify.examples", "a.tfrecord", "verify", "examples_format"),
    mistake("verify.examples_format", "elwc", "verify", "requires 'examples'"),
    mistake("verify.labels", {"score": "seen"}, "verify.labels", "verify.examples"),
    mistake("verify.expected", {"score": "seen"}, "verify.expected", "verify.examples"),
    of_examples({"verify.labels": {"click": "seen"}}, "verify.labels", "'click'"),
    of_examples({"verify.expected": {"ranking.vector": "seen"}}, "verify.expected", "'ranking.v"),
    of_examples({"verify.expected": {"vector": "seen"}}, "verify.expected", "'query.vector'"),
    mistake("warm_up.format", "elwc", "warm_up", "'requests'"),
    mistake("warm_up.signature", "rank", "warm_up", "'elwc'"),
    mistake("warm_up.examples", 3, "warm_up.examples", "verify.examples"),
    mistake("warm_up", {"examples": 3, "requests": "a"}, "warm_up", "exclude each other"),
    # Corpora, and what is made of them.
    mistake("corpora.movies.file", "no.csv", "corpora.movies.file", "no.csv"),
    mistake("corpora.movies.file", "movie.csv", "corpora.movies.file", "did you mean 'movies.csv'"),
    mistake("corpora.movies.file", ["movies.csv", 5], "corpora.movies.file.1: ", "string (got 5)"),
    mistake("corpora.movies.file", 5, "corpora.movies.file: ", "string or a valid list (got 5)"),
    mistake("corpora.movies.id", "id", "corpora.movies.id", "movieId"),
    mistake("corpora.movies.attributes", ["titel"], "corpora.movies.attributes", "'titel'"),
    mistake("corpora.movies.filters", ["genre"], "corpora.movies.filters", "'genres'"),
    mistake("corpora.movies.filters", "year", "corpora.movies.filters", "list"),
    mistake("corpora.movies.features.year", "yeer", "corpora.movies.features.year", "'yeer'"),
    mistake("corpora.movies.features.yeer", "year", "corpora.movies.features.yeer", "'year'"),
    mistake("corpora.movies.features.movie_id", "title", "movie_id", "row 1", code=4),
    mistake("contexts", {"users": {"file": "no.csv", "id": "u"}}, "contexts.users", "no.csv"),
    mistake(
        "contexts",
        {"users": {"file": "movies.csv", "id": "movieId", "filters": ["year"]}},
        "contexts.users.filters",
    ),
    mistake("lists", {"top": {**LIST, "by": "x"}}, "lists.top"),
    mistake("lists", {"top": {**LIST, "corpus": "films"}}, "lists.top.corpus", "'films'", "movies"),
    mistake("lists", {"top": {**LIST, "file": "no.csv"}}, "lists.top.file"),
    mistake("indexes.movies.corpus", "moviez", "indexes.movies.corpus", "'movies'"),
    mistake("indexes.movies.query_tower", "ranking", "indexes.movies.query_tower", "query"),
    mistake("indexes.movies.query_tower", "gone", "indexes.movies.query_tower", "'gone'", "query"),
    mistake("indexes.movies.candidate_tower", "ranking", "candidate_tower", "candidate"),
    mistake("indexes.movies.recall", {"of_tables": 0.8}, "recall.of_tables", "verify.examples"),
    mistake("indexes.movies.recall", {"of_cold_users": 0.8}, "of_cold_users", "verify.examples"),
    mistake("indexes.movies.partitions", 0, "indexes.movies.partitions"),
    mistake("indexes.movies.parameters", {"leafs": 3}, "indexes.movies.parameters", "'leafs'"),
    mistake("indexes.movies.recall", {"value": 0.9}, "indexes.movies.recall.value"),
    mistake("stages", {"ranking": {"tower": "t", "keep": 2, "recall": {"k": 3}}}, "'recall.k'"),
    mistake("stages", {"ranking": {"tower": "t", "keep": 9, "recall": {"pool_size": 9}}}, "'keep'"),
]

OF_THE_MODEL = [
    mistake("code.factory", "two_towers.py:build_movie", "'build_movie'"),
    mistake("towers.query.outputs", {"vector": "queries"}, "towers.query.outputs", "'queries'"),
    mistake("towers.ranking.outputs", {"score": "query"}, "'score'", '["query", 0]', code=4),
    mistake("towers.query.max_abs_error", {"f32": 0.1}, "towers.query.max_abs_error.f32"),
    mistake("tables.userz", {"segment_rows": 5}, "tables.userz", "genres_all"),
    mistake("features.movie_id.ids.first_row", 1, "features.movie_id.ids", "row 40"),
    mistake("corpora.movies.features", {"year": "year"}, "corpora.movies.features", "movie_id"),
    mistake("lists", {"top": {**LIST, **SEGMENTS, "by": "movie_id"}}, "'movie_id'", "candidates"),
    mistake("lists", {"top": {**LIST, **SEGMENTS, "by": "country"}}, "lists.top.by", "'country'"),
    Mistake(ALONE, 2, ("towers.ranking", 'role = "candidate"')),
    mistake("corpora.movies.features.user_id", "movieId", "'query'", "features.user_id.role"),
    mistake("output", INLINE | {"serving_default": "qurey"}, "serving_default", "query"),
    mistake("output", INLINE | {"root": "s3://bucket/models"}, "a path of this machine"),
    Mistake({"output": INLINE, "tables": {"users": {"dtype": "int8"}}}, 2, ("is for bundles",)),
    mistake("code.factory", "two_towers.py:build_movies_without_head", "head.kernel", code=3),
    mistake("checkpoint.object_path", "", 'checkpoint.object_path = "model"', code=3),
    mistake("checkpoint.object_path", "modle", "'modle'", code=3),
    mistake("tables.users.key", "model/embedding/_tpu_embedding/user", "did you mean", code=4),
]

ALL = [*WITHOUT_MODEL, *OF_THE_MODEL]


@pytest.mark.parametrize("wrong", ALL, ids=[f"{'+'.join(row.keys)}, {row.words}" for row in ALL])
def test_mistake_is_told_with_its_key_and_the_remedy(
    command: Command, recipe: Recipe, tmp_path: Path, wrong: Mistake
) -> None:
    for key, value in wrong.keys.items():
        recipe = changed(recipe, key, value)
    project = write_project(tmp_path, recipe)
    write_examples(tmp_path, example_requests())
    subcommand = "run"
    if wrong in WITHOUT_MODEL:
        subcommand = "plan"
        (tmp_path / "two_towers.py").write_text("raise AssertionError('model code runs')")
        checked = command("check", project)
        assert checked.code == wrong.code
        assert all(words in checked.out + checked.err for words in wrong.words), checked
    rejected(command, project, wrong.code, *wrong.words, subcommand=subcommand)


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"towers.query.precisions": ["int8"], "towers.query.max_abs_error": {"int8": 1}},
        {"verify": EXAMPLES | {"labels": {"score": "year"}}},
        {"verify": EXAMPLES | {"expected": {"query.vector": "year"}}},
        {"features.movie_id.ids.oov_buckets": 2, "features.movie_id.ids.oov_first_row": 0},
        {"towers.ranking.formula": "score^2 * sigmoid(score)"},
    ],
    ids=", ".join,
)
def test_recipe_without_a_mistake_is_taken(
    command: Command, recipe: Recipe, tmp_path: Path, keys: Keys
) -> None:
    for key, value in keys.items():
        recipe = changed(recipe, key, value)
    project = write_project(tmp_path, recipe)
    write_examples(tmp_path, example_requests())
    assert command("check", project).code == 0


@pytest.mark.parametrize(
    ("file", "content", "code", "words"),
    [
        ("movies.csv", {5: {"year": ""}}, 4, ("row 6", "features.year.default")),
        ("movies.csv", {5: {"movieId": "100"}}, 4, ("corpora.movies.id", "id 100", "row 6")),
        ("movies.csv", {7: {"movieId": ""}}, 4, ("corpora.movies.id", "row 8")),
        ("movie_ids.txt", b"", 2, ("movie_ids.txt", "empty")),
        ("movie_ids.txt", b"1\nx\n", 2, ("line 2", "'x'")),
        ("movie_ids.txt", b"1\n\n2\n", 2, ("line 2", "''")),
        ("movie_ids.txt", b"9223372036854775808\n", 2, ("line 1",)),
        ("movie_ids.txt", b"1\n2\n1\n", 2, ("id 1", "twice")),
        ("movie_ids.txt", b"\xff\xfe\n", 2, ("cannot be read",)),
        ("recipe.toml", b"a = text", 2, ("line 1", "quotes")),
        ("recipe.toml", b"\xff\xfe", 2, ("UTF-8",)),
        ("recipe.toml", b"a = " + b"[" * 100_000, 2, ("too deeply",)),
    ],
)
def test_damage_in_a_file_of_the_recipe_is_told_with_its_place(
    command: Command, project: Path, file: str, content: Any, code: int, words: tuple[str, ...]
) -> None:
    if isinstance(content, dict):
        write_corpus(project.with_name(file), content)
    else:
        project.with_name(file).write_bytes(content)
    rejected(command, project, code, *words)


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("two_tower.py:build_model", "'two_tower.py', and"),
        ("two_towers.py", "'file.py:function'"),
    ],
)
def test_check_finds_a_model_file_that_is_missing(
    command: Command, recipe: Recipe, tmp_path: Path, factory: str, words: str
) -> None:
    project = write_project(tmp_path, recipe)
    project.write_text(project.read_text().replace(recipe["code"]["factory"], factory))
    checked = command("check", project)
    assert checked.code == 2
    assert words in " ".join(checked.out.split())


def test_check_lists_all_mistakes(command: Command, project: Path) -> None:
    write_corpus(project.with_name("movies.csv"), {7: {"movieId": ""}})
    project.with_name("movie_ids.txt").write_text("x\n")
    checked = command("check", project, "--json")
    assert checked.code == 2
    assert "movie_ids.txt, line 1" in checked.out
    assert "row 8" in checked.out


def test_features_of_one_vocabulary_with_other_first_rows_are_likely_wrong(
    command: Command, recipe: Recipe, tmp_path: Path
) -> None:
    shifted = changed(recipe, "vocabularies.movies.file", "fewer.txt")
    shifted = changed(shifted, "features.history.ids.first_row", 1)
    (tmp_path / "fewer.txt").write_text("".join(f"{movie}\n" for movie in MOVIE_IDS[:-1]))
    done = command("plan", write_project(tmp_path, shifted))
    assert done.code == 0, done.err
    assert "likely wrong" in " ".join(done.out.split())


def test_recipe_is_checked_without_a_framework(project: Path) -> None:
    code = (
        "import sys\nfrom contextlib import suppress\nfrom export.cli.commands import app\n"
        f"with suppress(SystemExit): app(['check', {str(project)!r}])\n"
        "assert not {'tensorflow', 'jax', 'keras', 'torch'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_recipe_with_only_the_required_keys_takes_every_default(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(
        'model = "m"\ncheckpoint.path = "c"\ncode.factory = "m.py:f"\noutput.root = "b"\n'
        'inputs.user.dtype = "int64"\ntowers.query.role = "query"\n'
    )
    job = read_recipe(tmp_path / "recipe.toml")
    assert job.towers["query"].precisions == ("f32",)
    assert job.verify.count == 256
    assert job.inputs["user"].kind == "dense"
