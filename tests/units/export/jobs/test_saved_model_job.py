"""Self-contained SavedModels, called as by a client and compared with the original model, which
TensorFlow runs whole.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.storage import catalog
from export.graphs.loading import load_tensorflow
from export.jobs import saved_model_job
from export.model_code.factories import load_factory
from export.saved_model import proofs
from export.saved_model.files import VariablesPlan
from tests.units.export.checkpoint.tensor_bundles import Box, write_bundle
from tests.units.export.commands import Command, rejected
from tests.units.export.forked_runs import ForkedRuns
from tests.units.export.movies_job import (
    MOVIE_IDS,
    Recipe,
    changed,
    hidden,
    recipe_of,
    values_of,
    write_project,
)
from tests.units.export.traced_models import (
    MODELS,
    TracedCheckpoint,
    one_table_recipe,
    save_checkpoint,
)

pytestmark = pytest.mark.slow

Values = NDArray[Any]
Results = dict[str, dict[str, Values]]
KEY = "model/embedding/_tpu_embedding/{}/.ATTRIBUTES/VARIABLE_VALUE"
HALF_ROWS: list[Box] = [[(25, 15), (0, 8)], [(0, 11), (0, 8)], [(11, 14), (0, 8)]]
GRID: list[Box] = [[(0, 24), (0, 1)], [(0, 9), (1, 3)], [(9, 15), (1, 3)]]
N = 50


def original(trained: TracedCheckpoint, tables: Mapping[str, Values]) -> Any:
    """The uncut model as TensorFlow restores it, with other values in its tables."""
    tf = load_tensorflow()
    model = load_factory(trained.job.code.factory, MODELS)()
    tf.train.Checkpoint(model=model).restore(str(trained.prefix)).expect_partial()
    for part in tf.train.TrackableView(model).descendants():
        for config, table in getattr(part, "embedding_tables", {}).items():
            table.assign(tables[config.name])
    return model


def published(forked: ForkedRuns, project: Path, **dies: Any) -> tuple[Path, dict[str, Any]]:
    """Runs a job to its end, perhaps after a run that died and left files of another graph."""
    output = project.parent / "output"
    if dies:
        assert (
            forked.run(["run", str(project), "--version", "7"], output, **dies) == -signal.SIGKILL
        )
        assert hidden(project.parent / "bundles") == [
            ".staging-7",
            ".staging-7.journal",
            ".staging-7.lock",
        ]
        (project.parent / "bundles/movies/.staging-7/assets/other.txt").write_text("other")
        (project.parent / "bundles/movies/.staging-7/other.pb").write_text("other")
    assert forked.run(["run", str(project), "--version", "7", "--json"], output) == 0, (
        output.read_text()
    )
    text = output.read_text()
    page = json.loads(text[text.index("{") :])
    return Path(page["saved_model"]), page


def results_of(directory: Path, inputs: Mapping[str, Any]) -> Results:
    """All signatures of a loaded SavedModel, each given those of the inputs that it takes."""
    tf = load_tensorflow()
    signatures = tf.saved_model.load(str(directory)).signatures
    results = {}
    for name, signature in signatures.items():
        wanted = signature.structured_input_signature[1].items()
        tensors = {name: tf.constant(inputs[name], spec.dtype) for name, spec in wanted}
        results[name] = {output: value.numpy() for output, value in signature(**tensors).items()}
    return results


def bags(count: int, keys: list[Any], longest: int, seed: int) -> tuple[list[Any], Values]:
    random = np.random.default_rng(seed)
    sizes = random.integers(0, longest + 1, count)
    picked = [keys[index] for index in random.integers(0, len(keys), int(sizes.sum()))]
    return picked, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


@pytest.fixture(scope="module")
def movie_tables(movies: TracedCheckpoint) -> dict[str, Values]:
    """Stored as bfloat16, as float16 in slices that TensorFlow itself cannot restore, as a grid,
    and plainly.
    """
    stored: dict[str, Values] = dict(movies.tables)
    stored["users"] = stored["users"].astype(ml_dtypes.bfloat16)
    stored["movies"] = stored["movies"].astype(np.float16)
    return stored


@pytest.fixture(scope="module")
def inlined(
    movies: TracedCheckpoint,
    movie_tables: dict[str, Values],
    forked: ForkedRuns,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, dict[str, Any]]:
    root = tmp_path_factory.mktemp("inline")
    keys = {"users": "users", "movies": "movies", "hours": "hours", "genres_all": "genres.Sall"}
    tables = {KEY.format(keys[name]): values for name, values in movie_tables.items()}
    boxes = {KEY.format("movies"): HALF_ROWS, KEY.format("hours"): GRID}
    write_bundle(root / "ckpt-3", values_of(movies.prefix) | tables, boxes=boxes, files=2)
    page = changed(recipe_of(root / "ckpt-3"), "output.tables", "inline")
    page = changed(page, "output.serving_default", "ranking")
    page = changed(page, "features.user_id", {"ids": {"kind": "hash", "dtype": "string"}})
    page = changed(page, "features.hour", {"unknown": {"rule": "row", "row": 2}})
    page = changed(page, "features.movie_id.unknown", {"rule": "refuse"})
    # The next run resumes.
    return published(forked, write_project(root / "project", page), noted=5)


def test_saved_model_is_found_by_tensorflow_serving_and_not_by_rowcast_serve(
    inlined: tuple[Path, dict[str, Any]],
) -> None:
    directory, page = inlined
    root = directory.parents[1]
    assert (directory.parent.name, directory.name) == ("movies", "7")
    # What the run before left of another graph is gone.
    assert {path.name for path in directory.glob("*.pb")} == {"fingerprint.pb", "saved_model.pb"}
    assert [path.name for path in (directory / "assets").iterdir()] == ["movie_ids.txt"]
    assert catalog.committed_versions(root, "movies") == []
    assert catalog.next_version(root, "movies") == 8
    assert hidden(root) == []
    report = json.loads((directory / "assets.extra" / "rowcast.json").read_text())
    assert report.items() <= page.items()
    assert len(report["verification"]["loaded_by"]) == 2
    assert report["data"] == "copied"
    signatures = report["signatures"]
    assert signatures["serving_default"] == signatures["ranking"]
    assert signatures["query"]["inputs"]["history"] == ["history", "history_1"]


def test_saved_model_called_with_raw_ids_returns_the_outputs_of_the_original_model(
    inlined: tuple[Path, dict[str, Any]], movies: TracedCheckpoint, movie_tables: dict[str, Values]
) -> None:
    tf = load_tensorflow()
    random = np.random.default_rng(1)
    users = [f"user-{number}" for number in range(N)]
    history, splits = bags(N, MOVIE_IDS, 4, 2)
    genres, genre_splits = bags(N, list(range(9)), 3, 3)
    hours = random.integers(0, 24, N)
    movie_rows = random.integers(0, len(MOVIE_IDS), N)
    years = random.standard_normal(N).astype(np.float32)
    request = {
        "user_id": users,
        "history": np.array(history, np.int64),
        "history_1": splits,
        "hour": hours,
        "movie_id": [MOVIE_IDS[row] for row in movie_rows],
        "genres": np.array(genres, np.int64),
        "genres_1": genre_splits,
        "year": years,
    }
    results = results_of(inlined[0], request)
    model = original(movies, {**movie_tables, "genres/all": movie_tables["genres_all"]})
    rows = {
        "user_id": tf.strings.to_hash_bucket_fast(users, 50),
        "history": tf.RaggedTensor.from_row_splits(
            [MOVIE_IDS.index(movie) for movie in history], splits
        ),
        "hour": tf.constant(hours),
        "movie_id": tf.constant(movie_rows),
        "genres": tf.RaggedTensor.from_row_splits(request["genres"], genre_splits),
        "year": tf.constant(years),
    }
    right = {name: value.numpy() for name, value in model(rows).items()}
    assert set(results) == {"query", "candidate", "ranking", "serving_default"}
    np.testing.assert_allclose(results["query"]["vector"], right["query"], 1e-5, 1e-5)
    np.testing.assert_allclose(results["candidate"]["vector"], right["candidate"], 1e-5, 1e-5)
    np.testing.assert_allclose(results["ranking"]["score"], right["score"], 1e-5, 1e-5)
    np.testing.assert_array_equal(results["serving_default"]["score"], results["ranking"]["score"])


def test_plan_lists_signatures_and_costs_and_writes_nothing(
    command: Command, project: Path
) -> None:
    page = command("plan", project, "--tables", "inline", "--json").json
    assert set(page["tables"]) == {"movies", "genres_all", "users", "hours"}
    inputs = {"movie_id": ["movie_id"], "genres": ["genres", "genres_1"], "year": ["year"]}
    assert page["signatures"]["candidate"]["inputs"] == inputs
    assert page["written_bytes"] == page["read_bytes"] == ((50 + 40) * 8 + (24 + 9) * 4) * 4
    assert page["peak_memory_bytes"] > 0
    assert any("corpora and indexes" in note for note in page["notes"])
    linked = command("plan", project, "--tables", "inline-link", "--json").json
    assert (linked["data"], linked["tasks"], linked["peak_memory_bytes"]) == ("linked", 0, 0)
    assert "to be written" in command("plan", project, "--tables", "inline").out
    assert not (project.parent / "bundles").exists()


def test_inline_job_that_does_not_fit_is_rejected(
    command: Command, monkeypatch: pytest.MonkeyPatch, recipe: Recipe, tmp_path: Path
) -> None:
    project = write_project(tmp_path, changed(recipe, "output.tables", "inline"))
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=3000))
    rejected(command, project, 6, "3.3 KiB", 'output.tables = "inline-link"')


def test_model_too_large_to_compare_is_published_only_as_unproved(
    command: Command, monkeypatch: pytest.MonkeyPatch, recipe: Recipe, tmp_path: Path
) -> None:
    inline = changed(recipe, "output.tables", "inline")
    project = write_project(tmp_path / "project", inline)
    more_than_any_machine_has_free = 1 << 60
    with monkeypatch.context() as patch:
        patch.setattr(VariablesPlan, "load_bytes", more_than_any_machine_has_free)
        proof = command("run", project, "--json").json["verification"]
        # Rows are read from the written files.
        assert (proof["proved"], proof["loaded_by"]) == (True, [])
        assert "not loaded here" in proof["note"]
    shutil.rmtree(project.parent / "bundles")
    monkeypatch.setattr(proofs, "RESERVE_BYTES", more_than_any_machine_has_free)
    rejected(command, project, 5, "cannot be compared with the original model", "--unproved")
    proof = command("run", project, "--unproved", "--json").json["verification"]
    assert (proof["proved"], proof["examples"]) == (False, 0)
    bundle = write_project(tmp_path / "bundle", recipe)
    done = command("run", bundle, "--unproved")
    assert (done.code, "--unproved" in done.message) == (2, True)


def test_large_keras_embedding_is_linked_too(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    job = one_table_recipe("build_large_keras_table")
    prefix = save_checkpoint(job, tmp_path)
    values = values_of(prefix)
    table, kernel, bias = (
        values[next(key for key in values if name in key)] for name in ("embed", "kernel", "bias")
    )
    monkeypatch.setattr(saved_model_job, "SMALL_BYTES_MAX", kernel.nbytes)  # what is not yet large
    recipe = job.model_dump(mode="json", exclude_unset=True)
    recipe = changed(recipe, "checkpoint.path", str(prefix))
    project = write_project(tmp_path / "project", changed(recipe, "output.tables", "inline-link"))
    page = command("run", project, "--json").json
    assert page["table_bytes"] == 20_000 * 4 * 4
    items = [0, 7, 19_999]
    results = results_of(Path(page["saved_model"]), {"item": items})
    np.testing.assert_allclose(results["tower"]["result"], table[items] @ kernel + bias, 1e-5, 1e-5)
