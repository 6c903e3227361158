"""Parts of a recipe that name each other, files and tables: what is missing is reported before
the checkpoint and the model are opened, and of what is likely wrong there are warnings.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bundle.format.manifest import EmbeddedFeature, IdentityIds, IdRule
from export.errors import CheckpointError, ExportError, NotConvertible, UsageError
from export.front_end.specs import ModelSpec
from export.jobs.likely_mistakes import likely_mistakes
from export.jobs.preparation import prepare
from export.jobs.saved_model_job import prepare_inline
from export.recipe.schema import ExportJob
from export.recipe.settings import ExportSettings
from tests.id_graphs import computed_ids, hash_ids, vocabulary_ids
from tests.units.export.movies_job import MOVIE_IDS, changed, export, write_project
from tests.units.export.small_job import save_small_recipe
from tests.units.export.traced_features import embedded
from tests.units.export.traced_models import MODELS, one_table_recipe, save_checkpoint

CORPUS = {"file": "movies.csv", "id": "id"}
INDEX = {"corpus": "movies", "query_tower": "query", "candidate_tower": "candidate"}
QUERY = {"query": {"role": "query"}}
TOWERS = QUERY | {"candidate": {"role": "candidate"}, "ranking": {"role": "ranking"}}
NO_CORPUS: dict[str, Any] = {"corpora": {}, "indexes": {}}


def index(**parts: Any) -> dict[str, Any]:
    return {"indexes": {"movies": INDEX | parts}}


def prepared(folder: Path, *, inline: bool = False, **sections: Any) -> None:
    """Prepares a recipe beside whose files there is no checkpoint."""
    (folder / "names.txt").write_text("1\n")
    (folder / "examples.jsonl").write_text('{"id": 1}\n')
    (folder / "movies.csv").write_text("id,year\n1,1999\n")
    page: dict[str, Any] = {
        "model": "movies",
        "checkpoint": {"path": "ckpt"},
        "code": {"factory": "model.py:build"},
        "inputs": {},
        "towers": TOWERS,
        "output": {"root": "bundles"},
        "corpora": {"movies": CORPUS},
        "indexes": {"movies": INDEX},
    }
    job = ExportJob.model_validate(page | sections)
    (prepare_inline if inline else prepare)(job, folder, ExportSettings())


EXAMPLES = {"verify": {"examples": "examples.jsonl"}}
COMPLETE: list[dict[str, Any]] = [
    {},
    NO_CORPUS,
    EXAMPLES,
    EXAMPLES | index(recall={"value": 0.9, "of_tables": 0.8}),
    index(recall={"k": 5, "queries": 10}),
    {"vocabularies": {"names": {"file": "names.txt"}}},
    {"corpora": {"movies": CORPUS | {"filters": ["year"]}}},
    {"contexts": {"users": CORPUS}},
    {"inline": True, "tables": {"users": {"key": "k", "mod": True, "segment_rows": 5}}},
]
INCOMPLETE: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    (index(recall={"value": 0.9, "of_tables": 0.8}), ("recall.of_tables", "verify.examples")),
    (index(recall={"of_cold_users": 0.8}), ("recall.of_cold_users", "verify.examples")),
    (index(corpus="films"), ("indexes.movies.corpus", "'films'", "movies")),
    ({"corpora": {}}, ("indexes.movies.corpus", "no corpora")),
    (index(query_tower="gone"), ("indexes.movies.query_tower", "'gone'", "query")),
    (index(candidate_tower="ranking"), ("candidate_tower", "'ranking'", "candidate")),
    ({"towers": QUERY}, ("candidate_tower", "'candidate'", "none")),
    ({"vocabularies": {"names": {"file": "no.txt"}}}, ("vocabularies.names.file", "no.txt")),
    ({"verify": {"examples": "no.jsonl"}}, ("verify.examples", "no.jsonl")),
    ({"corpora": {"movies": CORPUS | {"file": "no.csv"}}}, ("corpora.movies.file", "no.csv")),
    ({"contexts": {"users": CORPUS | {"file": "no.csv"}}}, ("contexts.users.file", "no.csv")),
    ({"contexts": {"users": CORPUS | {"filters": ["year"]}}}, ("contexts.users.filters",)),
    ({"output": {"root": "movies.csv"}}, ("movies.csv", "not a directory")),
    (
        NO_CORPUS | {"inline": True, "output": {"root": "movies.csv", "tables": "inline"}},
        ("movies.csv", "not a directory"),
    ),
    (
        {"inline": True, "tables": {"users": {"key": "k", "dtype": "int8"}}},
        ("tables.users.dtype", "leave it out"),
    ),
    (
        {"inline": True, "output": {"root": "s3://bucket/models"}},
        ("output.root", "path of this machine"),
    ),
]


@pytest.mark.parametrize("sections", COMPLETE)
def test_recipe_whose_parts_are_there_is_prepared_up_to_its_checkpoint(
    tmp_path: Path, sections: dict[str, Any]
) -> None:
    with pytest.raises(CheckpointError, match="ckpt"):
        prepared(tmp_path, **sections)


@pytest.mark.parametrize(("sections", "words"), INCOMPLETE)
def test_recipe_that_names_what_is_not_there_is_rejected_first(
    tmp_path: Path, sections: dict[str, Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError) as rejection:
        prepared(tmp_path, **sections)
    assert all(expected in str(rejection.value) for expected in words), str(rejection.value)


@pytest.fixture(scope="module")
def small_recipe(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return save_small_recipe(tmp_path_factory.mktemp("small"))


POPULAR = {
    "corpus": "movies",
    "file": "popular.csv",
    "id": "movie",
    "segment": "user",
    "by": "user_id",
}


@pytest.mark.parametrize(
    ("rows", "part", "words"),
    [
        (f",{MOVIE_IDS[0]}\n,5\n", {}, ("1 of 2 ids", "'movies'", "5")),
        ("", {"corpus": "films"}, ("lists.popular.corpus", "'films'", "movies")),
        (f",{MOVIE_IDS[0]}\n", {"by": "movie_id"}, ("'movie_id'", "candidates")),
        ("", {"by": "country"}, ("lists.popular.by", "'country'")),
        ("", {"file": "old.csv"}, ("lists.popular.file",)),
    ],
)
def test_list_that_does_not_fit_stops_the_job_before_tables_are_copied(
    small_recipe: dict[str, Any],
    tmp_path: Path,
    rows: str,
    part: dict[str, str],
    words: tuple[str, ...],
) -> None:
    recipe = changed(small_recipe, "lists", {"popular": POPULAR | part})
    project = write_project(tmp_path, recipe)
    (tmp_path / "popular.csv").write_text(f"user,movie\n{rows}")
    with pytest.raises(ExportError) as problem:
        export(project, 1)
    assert all(expected in str(problem.value) for expected in words), str(problem.value)
    assert not list((tmp_path / "bundles").rglob("rows-*"))


def test_constant_counts_as_a_weight_of_its_tower_up_to_the_limit_of_a_variable(
    tmp_path: Path,
) -> None:
    job = one_table_recipe("build_with_content")
    page = job.model_dump(mode="json")
    page["checkpoint"]["path"] = str(save_checkpoint(job, tmp_path))
    page["output"]["root"] = str(tmp_path / "bundles")
    page["code"]["inline_bytes_max"] = 320
    prepare(ExportJob.model_validate(page), MODELS, ExportSettings())
    page["code"]["inline_bytes_max"] = 319
    with pytest.raises(NotConvertible, match=r"constant float32 \[20, 4\] .*one_table.py:"):
        prepare(ExportJob.model_validate(page), MODELS, ExportSettings())


IDENTITY = IdentityIds()
HASHED = hash_ids(3)
MOVED = computed_ids(("AddV2", 10))
FIRST = vocabulary_ids("ids")
SECOND = vocabulary_ids("ids", first_row=1)
OTHERS = vocabulary_ids("others")
RULES: dict[str, tuple[dict[str, IdRule], tuple[str, ...], tuple[str, ...]]] = {
    # the rules of features of one table, those that are the model's own, words of the warning
    "one vocabulary": ({"seen": SECOND, "liked": SECOND}, (), ()),
    "rows": ({"seen": IDENTITY, "liked": IDENTITY}, (), ()),
    # Fields of one table, each with its offset.
    "an offset of the model": ({"seen": IDENTITY, "liked": MOVED}, ("liked",), ()),
    "rules of the model": ({"seen": SECOND, "liked": HASHED}, ("seen", "liked"), ()),
    "a vocabulary and rows": (
        {"movie": SECOND, "seen": IDENTITY},
        (),
        ("'movie'", "'seen'", "verify.expected"),
    ),
    "a hash of the model and rows": (
        {"movie": HASHED, "seen": IDENTITY},
        ("movie",),
        ("'movie'", "'seen'"),
    ),
    "two vocabularies": (
        {"movie": FIRST, "seen": OTHERS, "liked": FIRST},
        (),
        ("'movie'", "'seen'", "others"),
    ),
    "two first rows": (
        {"seen": SECOND, "liked": SECOND, "wrong": FIRST},
        (),
        ("'seen'", "'wrong'", "first_row"),
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_features_of_one_table_by_different_rules_of_the_recipe_are_warned_of(name: str) -> None:
    rules, of_model, words = RULES[name]
    specs: dict[str, Any] = {}
    entries: dict[str, Any] = {}
    for feature, rule in rules.items():
        own: dict[str, Any] = {"ids": rule} if feature in of_model else {}
        specs[feature] = embedded(feature, "movies", **own)
        entries[feature] = EmbeddedFeature(kind="single", table="movies", role="context", ids=rule)
    warnings = likely_mistakes(entries, ModelSpec({}, specs, {}))
    assert len(warnings) == (1 if words else 0)
    assert all(expected in warnings[0] for expected in words)
