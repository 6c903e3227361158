"""Whole jobs of bundles: what a run of the movies writes, and that it resumes after a kill and an
edit of its model's code; and indexes that share a file.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from bundle.storage import catalog
from bundle.stores.attribute_index import AttributeIndex
from bundle.tables.reader import TableReader
from tests.units.bundle.features.readers import objects
from tests.units.export.commands import Command
from tests.units.export.forked_runs import ForkedRuns
from tests.units.export.killed_jobs import KILLED, journaled, rewritten
from tests.units.export.movies_job import (
    MOVIES,
    Facts,
    Recipe,
    edit,
    facts,
    genres_of,
    hidden,
    run_arguments,
    visible,
    write_project,
    year_of,
)
from tests.units.export.small_job import with_tree
from tests.units.export.traced_models import TracedCheckpoint

IN_THE_MIDDLE = 9 + 4
"""Steps: created, a vocabulary, a store, two filters, four tables; and four of the seven forms of
three towers.
"""


@pytest.fixture(scope="module")
def movies_facts(undisturbed: Path) -> Facts:
    return facts(undisturbed)


def test_run_every_table_is_external_and_bit_equal(
    undisturbed: Path, movies: TracedCheckpoint
) -> None:
    page = catalog.read_manifest(undisturbed)
    assert set(page.tables) == set(movies.tables)
    for name, values in movies.tables.items():
        rows = TableReader(undisturbed, page.tables[name]).gather(np.arange(len(values)))
        assert rows.tobytes() == values.tobytes()
    largest = min(values.nbytes for values in movies.tables.values())
    for tower in page.towers.values():
        for form in tower.forms:
            table_files = [
                path
                for path in [undisturbed / form.path, *(undisturbed / form.path).rglob("*")]
                if path.is_file()
            ]
            for values in movies.tables.values():
                assert all(
                    values.tobytes()[:largest] not in path.read_bytes() for path in table_files
                )


def test_run_records_in_the_manifest_what_was_verified(
    movies_facts: Facts, undisturbed: Path
) -> None:
    page, _ = movies_facts
    assert hidden(undisturbed.parents[1]) == []
    assert page["version"] == 1
    assert page["verification"]["examples"] == 24
    assert all(
        check["rows_compared"] == check["rows"] for check in page["verification"]["tables"].values()
    )
    ids, recall_of_users = page["verification"]["unverified"]
    assert ids.startswith("how ids become rows (history, hour, user_id, genres, movie_id)")
    assert "verify.expected" in ids
    assert recall_of_users.startswith("the recall for real queries (movies)")
    index = page["indexes"]["movies"]
    recall = index["recall"]
    assert (recall["value"], recall["k"], recall["queries"]) == (1.0, 10, 24)
    assert (recall["target"], recall["representative"]) == (0.95, False)
    assert (index["codes"], index["recall_of_tables"]) == (None, None)
    assert index["vectors"] == "indexes/movies/vectors.bin"
    assert page["provenance"]["model_code"] == "two_towers.py:build_movies"
    on_disk = {
        file.relative_to(undisturbed).as_posix()
        for file in undisturbed.rglob("*")
        if file.is_file()
    }
    listed = {str(file.path) for file in catalog.read_manifest(undisturbed).files}
    segments = {part["file"] for table in page["tables"].values() for part in table["segments"]}
    assert on_disk == listed | segments | {"manifest.json"}
    errors = {
        (name, form["kind"], form["precision"]): max(form["max_abs_error"].values())
        for name, tower in page["towers"].items()
        for form in tower["forms"]
    }
    assert len(errors) == 7
    assert 1e-5 < errors.pop(("ranking", "litert", "int8")) < 1.0
    assert max(errors.values()) < 1e-5


def test_run_filters_find_the_candidates_of_each_value(undisturbed: Path) -> None:
    corpus = catalog.read_manifest(undisturbed).corpora["movies"]
    indexes = {
        name: AttributeIndex(undisturbed, entry, corpus.attributes[name], corpus.size)
        for name, entry in corpus.filters.items()
    }
    assert {name: index.kind for name, index in indexes.items()} == {
        "genres": "list<string>",
        "year": "int64",
    }
    for genre in range(9):
        actual = indexes["genres"].rows_of(objects(str(genre))).tolist()
        assert actual == [row for row in range(MOVIES) if genre in genres_of(row)]
    assert sorted(indexes["year"].rows_between(ge=1990, lt=1992)) == [
        row for row in range(MOVIES) if year_of(row) in (1990, 1991)
    ]


@pytest.fixture(scope="module")
def killed_movies(
    recipe: Recipe, forked: ForkedRuns, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The project of a run that was killed between two forms of a tower."""
    directory = tmp_path_factory.mktemp("killed")
    project = write_project(directory / "project", recipe)
    status = forked.run(run_arguments(project), directory / "output", noted=IN_THE_MIDDLE)
    assert status in KILLED
    return project


@pytest.fixture
def killed_project(killed_movies: Path, tmp_path: Path) -> Path:
    """A copy of it, in which the same command resumes: see `copy_killed`."""
    return shutil.copytree(killed_movies.parent, tmp_path / "killed") / killed_movies.name


def test_run_killed_in_the_middle_resumes_to_the_same_bundle(
    forked: ForkedRuns, killed_project: Path, movies_facts: Facts, tmp_path: Path
) -> None:
    root = killed_project.parent / "bundles"
    finished = journaled(root / "movies")
    assert visible(root) == []
    output = tmp_path / "output"
    assert forked.run(run_arguments(killed_project), output) == 0, output.read_text()
    assert rewritten(finished, root / "movies/1") == set()
    assert facts(root / "movies/1") == movies_facts
    assert hidden(root) == []


@pytest.mark.nightly
@pytest.mark.slow
def test_run_after_an_edit_of_the_models_code_keeps_the_tables(
    forked: ForkedRuns,
    killed_project: Path,
    recipe: Recipe,
    movies_facts: Facts,
    tmp_path: Path,
) -> None:
    model = killed_project.parent / "bundles/movies"
    finished = journaled(model)
    tables = {path: seen for path, seen in finished.items() if path.startswith("tables/")}
    change = ("two_towers.py", 'dense(16, "relu")', 'dense(16, "selu")')
    edit(killed_project, *change)
    output = tmp_path / "output"
    assert forked.run(run_arguments(killed_project), output) == 0, output.read_text()
    assert len(tables) == 4
    assert rewritten(tables, model / "1") == set()

    fresh = write_project(tmp_path / "fresh", recipe)
    edit(fresh, *change)
    assert forked.run(run_arguments(fresh), output) == 0, output.read_text()
    assert facts(model / "1") == facts(fresh.parent / "bundles/movies/1") != movies_facts


def test_indexes_over_the_same_tower_share_one_file_of_vectors(
    command: Command, small_recipe: Recipe, tmp_path: Path
) -> None:
    project = write_project(tmp_path, with_tree(small_recipe))
    alone = command("run", project)
    assert alone.code == 0, alone.err

    changed_recipe = with_tree(small_recipe)
    changed_recipe["indexes"]["exact"] = small_recipe["indexes"]["movies"]
    done = command("run", write_project(tmp_path, changed_recipe))

    assert done.code == 0, done.err
    first, second = (tmp_path / f"bundles/small/{version}" for version in (1, 2))
    page = catalog.read_manifest(second)
    shared = page.indexes["movies"].vectors
    assert page.indexes["exact"].vectors == shared
    assert [file.path for file in page.files if file.path.endswith("vectors.bin")] == [shared]
    codes = page.indexes["movies"].codes
    assert codes is not None
    assert {codes.file, codes.codebook} < {file.path for file in page.files}
    assert page.indexes["exact"].codes is None
    assert page.indexes["exact"].kind == "brute_force"
    before = catalog.read_manifest(first).indexes["movies"]
    assert (second / shared).read_bytes() == (first / before.vectors).read_bytes()
