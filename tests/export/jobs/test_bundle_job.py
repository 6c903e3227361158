from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.storage import catalog, journal
from bundle.storage.staging import Staging
from bundle.stores.attribute_index import AttributeIndex
from bundle.tables.reader import TableReader
from runtime.scann import write_index
from tests.bundle.features.readers import objects
from tests.export.checkpoint.dump_files import sok_dump
from tests.export.commands import Command
from tests.export.forked_runs import ForkedRuns
from tests.export.movies_job import (
    MOVIES,
    Recipe,
    changed,
    example_requests,
    facts,
    genres_of,
    hidden,
    visible,
    write_examples,
    write_project,
    year_of,
)
from tests.export.traced_models import IDS, TracedCheckpoint, save_checkpoint
from tests.export.traced_models import recipe as traced_recipe

Facts = tuple[dict[str, Any], dict[str, bytes]]
KILLED = -signal.SIGKILL
STEPS = 19
TABLE_STEPS = 9
"""created, a vocabulary, a store, two filters, four tables, three towers in seven forms, vectors,
index (in two).
"""


def job_of(project: Path) -> list[str]:
    return ["run", str(project), "--version", "1"]


@pytest.fixture(scope="session")
def expected(undisturbed: Path) -> Facts:
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
            held = [
                path
                for path in [undisturbed / form.path, *(undisturbed / form.path).rglob("*")]
                if path.is_file()
            ]
            for values in movies.tables.values():
                assert all(values.tobytes()[:largest] not in path.read_bytes() for path in held)


def test_run_records_in_the_manifest_what_was_verified(expected: Facts, undisturbed: Path) -> None:
    page, _ = expected
    assert hidden(undisturbed.parents[1]) == []
    assert page["version"] == 1
    assert page["verification"]["examples"] == 24
    assert all(
        check["rows_compared"] == check["rows"] for check in page["verification"]["tables"].values()
    )
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
        found = indexes["genres"].rows_of(objects(str(genre))).tolist()
        assert found == [row for row in range(MOVIES) if genre in genres_of(row)]
    assert sorted(indexes["year"].rows_between(ge=1990, lt=1992)) == [
        row for row in range(MOVIES) if year_of(row) in (1990, 1991)
    ]


@pytest.mark.slow
def test_run_killed_at_every_step_resumes_to_the_same_bundle(
    forked: ForkedRuns, project: Path, expected: Facts
) -> None:
    # Each run notes the step that the one before left unnoted, and is killed with the files of the
    # next one written.
    for unnoted in (1, *[2] * (STEPS - 1)):
        assert forked.run(job_of(project), project.parent / "output", unnoted=unnoted) == KILLED
        assert visible(project.parent / "bundles") == []
    assert forked.run(job_of(project), project.parent / "output") == 0
    assert facts(project.parent / "bundles/movies/1") == expected
    assert hidden(project.parent / "bundles") == []


def edit(base: Path, file: str, before: str, after: str) -> None:
    shutil.rmtree(base / "__pycache__", ignore_errors=True)  # Python goes by sizes and times
    text = (base / file).read_text()
    assert before in text
    (base / file).write_text(text.replace(before, after))


@pytest.mark.parametrize(
    ("change", "noted"),
    [
        (("movie_ids.txt", "100\n107\n", "107\n100\n"), TABLE_STEPS),
        pytest.param(
            ("movie_ids.txt", "100\n107\n", "107\n100\n"), STEPS - 1, marks=pytest.mark.slow
        ),
        pytest.param(
            ("movies.csv", 'Movie ""3""', 'Other ""3""'), STEPS - 1, marks=pytest.mark.slow
        ),
        pytest.param(
            ("recipe.toml", '"count" = 24', '"count" = 25'), STEPS - 1, marks=pytest.mark.slow
        ),
        pytest.param(
            ("recipe.toml", '_tower" = "candidate"', '_tower" = "candidate", "recall" = {"k" = 3}'),
            STEPS - 1,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("recipe.toml", '"filters" = ["genres", "year"]', '"filters" = ["year", "title"]'),
            STEPS - 1,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("two_towers.py", 'dense(16, "relu")', 'dense(16, "selu")'),
            STEPS - 1,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_run_after_an_edit_redoes_what_changed_and_keeps_the_tables(
    forked: ForkedRuns,
    recipe: Recipe,
    project: Path,
    tmp_path: Path,
    change: tuple[str, str, str],
    noted: int,
) -> None:
    base = project.parent
    assert forked.run(job_of(project), base / "output", noted=noted) == KILLED
    segments = {
        path.name: path.stat().st_ino
        for path in (base / "bundles/movies/.staging-1/tables").rglob("*.bin")
    }
    times = {path: path.stat() for path in base.iterdir() if path.is_file()}
    edit(base, *change)
    for path, before in times.items():  # sizes and times are as they were
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert forked.run(job_of(project), base / "output") == 0, (base / "output").read_text()

    bundle = base / "bundles/movies/1"
    assert {
        path.name: path.stat().st_ino for path in (bundle / "tables").rglob("*.bin")
    } == segments
    fresh = write_project(tmp_path / "fresh", recipe)
    edit(fresh.parent, *change)
    assert forked.run(job_of(fresh), tmp_path / "output") == 0
    assert facts(bundle) == facts(fresh.parent / "bundles/movies/1")


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("towers.ranking.max_abs_error.int8", 1e-12, "ranking"),
        pytest.param(
            "verify.examples", "examples.jsonl", "verify.examples", marks=pytest.mark.slow
        ),
    ],
)
def test_check_that_fails_keeps_what_is_finished(
    forked: ForkedRuns, recipe: Recipe, tmp_path: Path, key: str, value: Any, told: str
) -> None:
    project = write_project(tmp_path, changed(recipe, key, value))
    staged = tmp_path / "bundles/movies/.staging-1"
    write_examples(
        tmp_path, [example_requests()[0] | {"year": float("nan")}, *example_requests()[1:]]
    )
    assert forked.run(job_of(project), tmp_path / "output") == 5
    text = (tmp_path / "output").read_text()
    assert told in text
    assert f"{staged} keeps what is finished" in text
    files = [path for path in staged.rglob("*") if path.is_file() and ".attempts" not in str(path)]
    kept = {path.relative_to(staged): path.stat().st_ino for path in files}
    assert len(kept) >= TABLE_STEPS
    write_project(tmp_path, recipe)
    assert forked.run(job_of(project), tmp_path / "output") == 0, (tmp_path / "output").read_text()
    assert {path: (tmp_path / "bundles/movies/1" / path).stat().st_ino for path in kept} == kept


@pytest.mark.slow
def test_run_while_another_writes_the_version_exits_6_and_the_other_publishes(
    forked: ForkedRuns, command: Command, project: Path, expected: Facts, tmp_path: Path
) -> None:
    pid = forked.start(job_of(project), tmp_path / "first", stops=1)
    assert forked.status() == -signal.SIGSTOP
    second = command(*job_of(project))
    os.kill(pid, signal.SIGCONT)
    assert forked.status() == 0
    assert second.code == 6
    assert "is being written by another run" in second.err
    assert facts(project.parent / "bundles/movies/1") == expected


@pytest.mark.slow
def test_run_that_is_interrupted_exits_130_with_a_message_and_resumes(
    forked: ForkedRuns, project: Path, tmp_path: Path
) -> None:
    pid = forked.start(job_of(project), tmp_path / "output", stops=1)
    assert forked.status() == -signal.SIGSTOP
    os.kill(pid, signal.SIGINT)
    os.kill(pid, signal.SIGCONT)
    assert forked.status() == 130
    lines = [
        line for line in (tmp_path / "output").read_text().splitlines() if not line.startswith("  ")
    ]
    assert lines == ["rowcast-export: interrupted; run the same command again to resume"]
    assert visible(project.parent / "bundles") == []
    assert hidden(project.parent / "bundles") == [".staging-1", ".staging-1.journal"]


@pytest.mark.slow
def test_run_resumed_with_damaged_staged_files_writes_them_again(
    forked: ForkedRuns, project: Path, expected: Facts
) -> None:
    assert forked.run(job_of(project), project.parent / "output", noted=TABLE_STEPS) == KILLED
    staged = project.parent / "bundles/movies/.staging-1"
    for file in ("tables/users/rows-00000-of-00001.bin", "corpora/movies/store.arrow"):
        content = bytearray((staged / file).read_bytes())
        content[len(content) // 2] ^= 1
        (staged / file).write_bytes(content)
    (staged / "vocabularies/movies.arrow").unlink()
    assert forked.run(job_of(project), project.parent / "output") == 0
    assert facts(project.parent / "bundles/movies/1") == expected


CODES = "indexes/movies/scann/hashed_dataset.npy"
NO_LEAVES = {"num_leaves": 20, "leaves_to_search": 1, "reorder": 1}


def with_tree(recipe: Recipe, **recall: Any) -> Recipe:
    """The recipe with a tree of few candidates and real queries."""
    index = recipe["indexes"]["movies"] | {
        "kind": "tree_ah",
        "distance": "squared_l2",
        "parameters": NO_LEAVES,
        "recall": recall,
    }
    return changed(changed(recipe, "indexes.movies", index), "verify.examples", "examples.jsonl")


def test_run_whose_recall_is_too_low_keeps_the_index_for_another_limit(
    command: Command, recipe: Recipe, tmp_path: Path
) -> None:
    write_examples(tmp_path, example_requests())
    failed = command("run", write_project(tmp_path, with_tree(recipe, value=1.0)))
    assert failed.code == 5
    assert "recall@10 is 0." in failed.message
    codes = tmp_path / "bundles/movies/.staging-1" / CODES
    built = codes.stat().st_ino

    write_examples(tmp_path, example_requests()[1:])
    lower = with_tree(recipe, value=0.01)
    lower["indexes"]["movies"]["parameters"] = NO_LEAVES | {"leaves_to_search": 2}
    done = command("run", write_project(tmp_path, lower))

    assert done.code == 0, done.err
    assert (tmp_path / "bundles/movies/1" / CODES).stat().st_ino == built
    index = catalog.read_manifest(tmp_path / "bundles/movies/1").indexes["movies"]
    assert index.parameters["leaves_to_search"] == 2


def test_indexes_over_the_same_tower_share_one_file_of_vectors(
    command: Command, recipe: Recipe, tmp_path: Path
) -> None:
    write_examples(tmp_path, example_requests())
    project = write_project(tmp_path, with_tree(recipe, value=0.01))
    alone = command("run", project)
    assert alone.code == 0, alone.err

    both = with_tree(recipe, value=0.01)
    both["indexes"]["exact"] = recipe["indexes"]["movies"]
    done = command("run", write_project(tmp_path, both))

    assert done.code == 0, done.err
    first, second = (tmp_path / f"bundles/movies/{version}" for version in (1, 2))
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


def swap_vectors(staged: Path) -> None:
    path = staged / "indexes/movies/vectors.bin"
    vectors = np.fromfile(path, "<f4").reshape(MOVIES, -1)
    vectors[[3, 8]] = vectors[[8, 3]]
    vectors.tofile(path)


def build_of_reversed_vectors(staged: Path) -> None:
    directory = staged / "indexes/movies/scann"
    vectors = np.fromfile(staged / "indexes/movies/vectors.bin", "<f4").reshape(MOVIES, -1)
    built = dict.fromkeys(("num_leaves", "leaves_to_search", "reorder"), 1)
    parameters = built | {"num_leaves": 20, "dimensions_per_block": 2}
    write_index(vectors[::-1].copy(), "squared_l2", "tree_ah", parameters, directory)


def write_codes_of_reversed_vectors(staged: Path) -> None:
    path = staged / "indexes/movies/codes/codes.bin"
    codes = np.fromfile(path, np.uint8).reshape(MOVIES, -1)
    codes[::-1].tofile(path)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (swap_vectors, "candidate 121 (row 4 of corpus 'movies') is not what the original model"),
        (build_of_reversed_vectors, "it was built from other vectors, or in another order"),
        (write_codes_of_reversed_vectors, "they were made of other vectors, or in another order"),
    ],
)
def test_run_after_a_failed_check_of_an_index_makes_it_again(
    forked: ForkedRuns,
    recipe: Recipe,
    tmp_path: Path,
    damage: Callable[[Path], None],
    told: str,
) -> None:
    write_examples(tmp_path, example_requests())
    project = write_project(tmp_path, with_tree(recipe, value=0.01))
    root = tmp_path / "bundles"
    # One step more than of a brute force index: the codes.
    assert forked.run(job_of(project), tmp_path / "output", noted=STEPS + 1) == KILLED
    damage(root / "movies/.staging-1")
    with Staging(root, "movies", 1) as stage:  # what is wrong counts as finished, and is whole
        for step, entry in journal.read(root / "movies/.staging-1.journal").items():
            if step.endswith(("vectors.bin", "scann", "codes")):
                files = [stage.digests(file.path)[0] for file in entry.files]
                stage.finish(step, entry.key, entry.payload, files)

    assert forked.run(job_of(project), tmp_path / "output") == 5
    assert told in (tmp_path / "output").read_text()
    assert forked.run(job_of(project), tmp_path / "output") == 0, (tmp_path / "output").read_text()


def test_run_after_other_keys_of_the_same_rows_writes_vectors_anew(
    command: Command, tmp_path: Path
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
    failed = command("run", project)
    assert failed.code == 5, failed.err

    sok_dump(tmp_path / "dump", "items", np.roll(keys, 1), rows)
    write_project(tmp_path, changed(recipe, "indexes.items.recall.value", 0.01))
    done = command("run", project)

    assert done.code == 0, done.err
    vectors = np.fromfile(tmp_path / "bundles/tested/1/indexes/items/vectors.bin", "<f4")
    np.testing.assert_allclose(vectors.reshape(200, 4), np.roll(rows, -1, axis=0), rtol=1e-6)
