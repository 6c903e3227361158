"""What a recipe names is looked for before its checkpoint and its model are opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from export.errors import CheckpointError, NotConvertible, UsageError
from export.explain.drawing import draw_prepared
from export.jobs.preparation import prepare
from export.jobs.saved_model_job import prepare_inline
from export.recipe.schema import ExportJob
from export.recipe.settings import ExportSettings
from tests.units.export.traced_models import MODELS, one_table_recipe, save_and_trace

CORPUS = {"file": "movies.csv", "id": "id"}
INDEX = {"corpus": "movies", "query_tower": "query", "candidate_tower": "candidate"}
QUERY = {"query": {"role": "query"}}
TOWERS = QUERY | {"candidate": {"role": "candidate"}, "ranking": {"role": "ranking"}}
FILES = ("names.txt",)


def prepared(folder: Path, *, inline: bool = False, **sections: Any) -> None:
    """Prepares a recipe beside whose files there is no checkpoint."""
    for name in FILES:
        (folder / name).write_text("1\n")
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
    if inline:
        prepare_inline(job, folder, ExportSettings())
    else:
        prepare(job, folder, ExportSettings())


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"corpora": {}, "indexes": {}},
        {"verify": {"examples": "examples.jsonl"}},
        {
            "verify": {"examples": "examples.jsonl"},
            "indexes": {"movies": INDEX | {"recall": {"value": 0.9, "of_tables": 0.8}}},
        },
        {"indexes": {"movies": INDEX | {"recall": {"k": 5, "queries": 10}}}},
        {"vocabularies": {"names": {"file": "names.txt"}}},
        {"corpora": {"movies": CORPUS | {"filters": ["year"]}}},
        {"contexts": {"users": CORPUS}},
    ],
)
def test_recipe_whose_files_are_there_is_prepared_up_to_its_checkpoint(
    tmp_path: Path, sections: dict[str, Any]
) -> None:
    with pytest.raises(CheckpointError, match="ckpt"):
        prepared(tmp_path, **sections)


@pytest.mark.parametrize("inline", [False, True])
def test_root_that_is_a_file_is_rejected_before_the_checkpoint_is_opened(
    tmp_path: Path, inline: bool
) -> None:
    (tmp_path / "bundles").touch()
    output = {"root": "bundles", "tables": "inline" if inline else "copy"}
    sections: dict[str, Any] = {"corpora": {}, "indexes": {}} if inline else {}
    with pytest.raises(UsageError, match="bundles is not a directory"):
        prepared(tmp_path, inline=inline, output=output, **sections)


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        (
            {"indexes": {"movies": INDEX | {"recall": {"value": 0.9, "of_tables": 0.8}}}},
            "indexes.movies.recall.of_tables is a limit, which needs real queries: name a file of "
            "raw examples as verify.examples, or leave the limit out; recall on invented queries "
            "stops nothing",
        ),
        (
            {"indexes": {"movies": INDEX | {"recall": {"of_cold_users": 0.8}}}},
            "indexes.movies.recall.of_cold_users is a limit, which needs real queries: name a file "
            "of raw examples as verify.examples, or leave the limit out; recall on invented "
            "queries stops nothing",
        ),
        (
            {"indexes": {"movies": INDEX | {"corpus": "films"}}},
            "indexes.movies.corpus names 'films'; the recipe has movies",
        ),
        ({"corpora": {}}, "indexes.movies.corpus names 'movies'; the recipe has no corpora"),
        (
            {"indexes": {"movies": INDEX | {"query_tower": "gone"}}},
            "indexes.movies.query_tower names 'gone'; the recipe's towers with role = 'query': "
            "query",
        ),
        (
            {"indexes": {"movies": INDEX | {"candidate_tower": "ranking"}}},
            "indexes.movies.candidate_tower names 'ranking'; the recipe's towers with role = "
            "'candidate': candidate",
        ),
        (
            {"towers": QUERY},
            "indexes.movies.candidate_tower names 'candidate'; the recipe's towers with role = "
            "'candidate': none",
        ),
        (
            {"vocabularies": {"names": {"file": "no.txt"}}},
            "vocabularies.names.file: file FOLDER/no.txt does not exist",
        ),
        (
            {"verify": {"examples": "no.jsonl"}},
            "verify.examples: file FOLDER/no.jsonl does not exist",
        ),
        (
            {"corpora": {"movies": CORPUS | {"file": "no.csv"}}},
            "corpora.movies.file: FOLDER/no.csv does not exist, or is a directory or pattern "
            "without files",
        ),
        (
            {"contexts": {"users": CORPUS | {"file": "no.csv"}}},
            "contexts.users.file: FOLDER/no.csv does not exist, or is a directory or pattern "
            "without files",
        ),
        (
            {"contexts": {"users": CORPUS | {"filters": ["year"]}}},
            "contexts.users.filters: only a corpus has filters; leave it out",
        ),
    ],
)
def test_recipe_that_names_what_is_not_there_is_rejected_first(
    tmp_path: Path, sections: dict[str, Any], problem: str
) -> None:
    with pytest.raises(UsageError) as rejection:
        prepared(tmp_path, **sections)
    assert str(rejection.value) == problem.replace("FOLDER", str(tmp_path))


@pytest.mark.parametrize(
    "table", [{}, {"key": "k", "mod": True, "segment_rows": 5}, {"segment_rows": 5}]
)
def test_self_contained_saved_model_takes_tables_as_they_were_trained(
    tmp_path: Path, table: dict[str, Any]
) -> None:
    with pytest.raises(CheckpointError, match="ckpt"):
        prepared(tmp_path, inline=True, tables={"users": table})


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        (
            {"tables": {"users": {"key": "k", "unavailable": "error", "dtype": "int8"}}},
            "tables.users.dtype is for bundles; a self-contained SavedModel holds tables as they "
            "were trained: leave it out",
        ),
        (
            {"output": {"root": "s3://bucket/models"}},
            "output.root is s3://bucket/models; a self-contained SavedModel is written to a path "
            "of this machine: give one, and send the directory with your store's own tool",
        ),
    ],
)
def test_self_contained_saved_model_of_what_only_bundles_have_is_rejected(
    tmp_path: Path, sections: dict[str, Any], problem: str
) -> None:
    with pytest.raises(UsageError) as rejection:
        prepared(tmp_path, inline=True, **sections)
    assert str(rejection.value) == problem


def test_constant_counts_as_a_weight_of_its_tower_and_has_the_limit_of_a_variable(
    tmp_path: Path,
) -> None:
    traced = save_and_trace(one_table_recipe("build_with_content"), tmp_path)
    page = traced.job.model_dump()
    page["checkpoint"]["path"] = str(traced.prefix)
    page["output"]["root"] = str(tmp_path / "bundles")
    page["code"]["inline_bytes_max"] = 320
    job = ExportJob.model_validate(page)

    (tower,) = draw_prepared(prepare(job, MODELS, ExportSettings()), "").towers
    assert tower.bytes >= 320

    page["code"]["inline_bytes_max"] = 319
    with pytest.raises(
        NotConvertible,
        match=r"'tower' holds a constant float32 \[20, 4\] \(320 B\) \(one_table.py:\d+\), which",
    ):
        prepare(ExportJob.model_validate(page), MODELS, ExportSettings())
