"""Self-contained SavedModels, called as by a client and compared with the original model, which
TensorFlow runs whole.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import farmhash
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.storage import catalog
from export.checkpoint.formats.tensorbundle import data_file
from export.graphs.loading import load_tensorflow
from export.jobs import saved_model_job
from export.model_code.factories import load_factory
from export.saved_model import proofs
from export.saved_model.files import VariablesPlan
from export.tables.tasks import WORKER_BYTES
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
    assert sorted(path.name for path in directory.iterdir()) == [
        "assets",
        "assets.extra",
        "fingerprint.pb",
        "saved_model.pb",
        "variables",
    ]
    assert [path.name for path in (directory / "assets").iterdir()] == ["movie_ids.txt"]
    assert catalog.committed_versions(root, "movies") == []
    assert catalog.next_version(root, "movies") == 8
    assert hidden(root) == []
    report = json.loads((directory / "assets.extra" / "rowcast.json").read_text())
    assert report == {
        key: value for key, value in page.items() if key not in ("saved_model", "seconds")
    }
    assert report["verification"]["loaded_by"] == [
        "tf.saved_model.load",
        "tf.compat.v1.saved_model.load",
    ]
    assert report["data"] == "copied"
    assert report["signatures"]["serving_default"] == report["signatures"]["ranking"]
    assert report["signatures"]["query"]["inputs"] == {
        "user_id": ["user_id"],
        "history": ["history", "history_1"],
        "hour": ["hour"],
    }


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
        "user_id": tf.constant([farmhash.fingerprint64(user) % 50 for user in users], tf.int64),
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


def test_unknown_ids_follow_each_features_rule(inlined: tuple[Path, dict[str, Any]]) -> None:
    tf = load_tensorflow()
    signatures = tf.saved_model.load(str(inlined[0])).signatures
    example = {"user_id": tf.constant(["a"]), "hour": tf.constant([2], tf.int64)}
    none = tf.constant([0, 0], tf.int64)
    rows = tf.constant([0, 1], tf.int64)
    empty = signatures["query"](**example, history=tf.constant([], tf.int64), history_1=none)[
        "vector"
    ]
    left_out = signatures["query"](**example, history=tf.constant([-5], tf.int64), history_1=rows)[
        "vector"
    ]
    np.testing.assert_array_equal(left_out, empty)
    example["hour"] = tf.constant([99], tf.int64)  # becomes row 2
    np.testing.assert_array_equal(
        signatures["query"](**example, history=tf.constant([-5], tf.int64), history_1=rows)[
            "vector"
        ],
        empty,
    )
    movie = {"year": tf.constant([1.0]), "genres": tf.constant([], tf.int64), "genres_1": none}
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="feature movie_id: an id is not in table movies"
    ):
        signatures["candidate"](movie_id=tf.constant([1], tf.int64), **movie)


def stacked_ads(trained: TracedCheckpoint, directory: Path) -> Path:
    """The ads' checkpoint as two chips of two sparse cores each would lay it: `ads` and `words` in
    one stack.

    Returns a layout file that says so.
    """
    cores = 4
    stack = np.full((160, 8), np.nan, np.float32)
    layouts = {}
    for name, rows, dim, offset, rotation in (("ads", 30, 4, 0, 0), ("words", 100, 6, 8, 2)):
        for row in range(rows):
            stack[(row + rotation) % cores * 40 + offset + row // cores, :dim] = trained.tables[
                name
            ][row]
        layout = {"rows": rows, "dim": dim, "cores": cores, "offset": offset, "rotation": rotation}
        layouts[name] = {"key": "stack", "kind": "sparse_core", **layout}
    variables = {
        key: value
        for key, value in values_of(trained.prefix).items()
        if "_tpu_embedding" not in key
    }
    halves: list[Box] = [[(0, 80), (0, 8)], [(80, 80), (0, 8)]]
    write_bundle(directory / "ckpt-3", variables | {"stack": stack}, boxes={"stack": halves})
    (directory / "layout.json").write_text(json.dumps({"tables": layouts}))
    return directory / "layout.json"


@pytest.mark.slow
def test_stack_is_linked_without_being_rewritten(
    ads: TracedCheckpoint, forked: ForkedRuns, tmp_path: Path
) -> None:
    recipe = changed(
        ads.job.model_dump(mode="json", exclude_unset=True),
        "checkpoint.layout",
        str(stacked_ads(ads, tmp_path)),
    )
    recipe = changed(
        changed(recipe, "checkpoint.path", str(tmp_path / "ckpt-3")), "output.tables", "inline-link"
    )
    recipe = changed(recipe, "verify.stated_layouts", "accept")
    directory, page = published(forked, write_project(tmp_path / "project", recipe))
    assert page["data"] == "linked"
    assert page["tables"]["words"]["layout"] == "sparse_core"
    assert page["tables"]["words"]["variable"] == page["tables"]["ads"]["variable"]
    variables = directory / "variables" / "variables"
    assert data_file(variables, 0, 2).samefile(data_file(tmp_path / "ckpt-3", 0, 1))
    proof = page["verification"]
    assert proof["loaded_by"] == ["tf.saved_model.load", "tf.compat.v1.saved_model.load"]
    assert set(proof["max_abs_error"]["ranking"]) == {"click", "hidden"}
    ids, layouts, rows = proof["unverified"]
    assert ids.startswith("how ids become rows (")
    assert "its statement was accepted" in layouts
    assert rows == "rows that no example reads"


def test_plan_lists_the_inputs_of_the_signatures_and_writes_nothing(
    command: Command, project: Path
) -> None:
    page = command("plan", project, "--tables", "inline", "--json").json
    assert set(page["tables"]) == {"movies", "genres_all", "users", "hours"}
    inputs = {"movie_id": ["movie_id"], "genres": ["genres", "genres_1"], "year": ["year"]}
    assert page["signatures"]["candidate"]["inputs"] == inputs
    assert page["written_bytes"] == page["read_bytes"] == ((50 + 40) * 8 + (24 + 9) * 4) * 4
    assert (page["files"], page["tasks"]) == (1, 4)
    memory_bytes = WORKER_BYTES + (2 << 20)  # two blocks
    assert page["peak_memory_bytes"] == min(page["workers"], 4) * memory_bytes
    linked = command("plan", project, "--tables", "inline-link", "--workers", "3", "--json").json
    assert (linked["data"], linked["tasks"], linked["peak_memory_bytes"]) == ("linked", 0, 0)
    assert linked["workers"] == 3
    output = " ".join(command("plan", project, "--tables", "inline").out.split())
    assert " movies 40 8 float32 plain " in output
    assert " candidate movie_id, genres, genres_1, year vector " in output
    assert " 3.3 KiB to be copied, 4 tasks on " in output
    assert f" to be written: {project.parent / 'bundles/movies/1'}" in output
    assert "note: corpora and indexes of the recipe are not part of a SavedModel" in output
    assert "of memory; a server, and the proof, hold" in output
    assert not (project.parent / "bundles").exists()


def test_plan_notes_lists_that_clients_must_pad_themselves(
    ads: TracedCheckpoint, command: Command, tmp_path: Path
) -> None:
    recipe = ads.job.model_dump(mode="json", exclude_unset=True)
    recipe = changed(recipe, "checkpoint.path", str(ads.prefix))
    slots = {"dtype": "int64", "shape": [2], "pad": 0, "keep": "last"}
    project = write_project(tmp_path / "project", changed(recipe, "inputs.slots", slots))
    page = command("plan", project, "--tables", "inline", "--json").json
    assert [note for note in page["notes"] if "lists of slots are neither padded nor cut" in note]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            "output.serving_default",
            "qurey",
            "output.serving_default is 'qurey'; the recipe's towers: query, candidate",
        ),
        (
            "output.root",
            "s3://bucket/models",
            "a self-contained SavedModel is written to a path of this machine",
        ),
        (
            "tables.users.dtype",
            "int8",
            "tables.users.dtype is for bundles; a self-contained SavedModel holds tables",
        ),
    ],
)
def test_invalid_inline_job_exits_2(
    command: Command, recipe: Recipe, tmp_path: Path, path: str, value: Any, message: str
) -> None:
    inline = changed(changed(recipe, "output.tables", "inline"), path, value)
    rejected(command, write_project(tmp_path / "project", inline), 2, message)


def test_line_of_a_vocabulary_that_is_no_key_is_named_in_the_plan(
    command: Command, recipe: Recipe, tmp_path: Path
) -> None:
    project = write_project(tmp_path / "project", changed(recipe, "output.tables", "inline"))
    (project.parent / "movie_ids.txt").write_text("5\nseven\n")
    message = "movie_ids.txt, line 2: 'seven' is not an int64"
    rejected(command, project, 2, message, subcommand="plan")


def test_tables_larger_than_the_disk_exit_6_with_the_cure(
    command: Command, monkeypatch: pytest.MonkeyPatch, recipe: Recipe, tmp_path: Path
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=3000))
    project = write_project(tmp_path / "project", changed(recipe, "output.tables", "inline"))
    needed = "2.9 KiB free, the tables need 3.3 KiB: 408 B more; free some"
    rejected(command, project, 6, needed, 'or set output.tables = "inline-link"')


def add_gone_object(model: Any) -> dict[str, Any]:
    """Adds an object that the model had in training and its code lacks now."""
    tf = load_tensorflow()
    model.gone = tf.train.Checkpoint(weight=tf.Variable(tf.zeros((3, 5))))
    return {}


def test_model_too_large_to_compare_is_published_only_as_unproved(
    command: Command, monkeypatch: pytest.MonkeyPatch, recipe: Recipe, tmp_path: Path
) -> None:
    monkeypatch.setattr(proofs, "RESERVE_BYTES", 1 << 60)  # more than any machine has free
    inline = changed(recipe, "output.tables", "inline")
    project = write_project(tmp_path / "project", inline)
    rejected(command, project, 5, "cannot be compared with the original model", "--unproved")

    page = command("run", project, "--unproved", "--json").json

    proof = page["verification"]
    assert (proof["proved"], proof["examples"]) == (False, 0)
    assert "not compared with the original model, by --unproved" in proof["note"]
    bundle = write_project(tmp_path / "bundle", recipe)
    done = command("run", bundle, "--unproved")
    assert (done.code, "--unproved is for a self-contained" in done.message) == (2, True)


def test_rows_are_read_from_written_files_where_memory_is_too_short_to_load_them(
    command: Command, monkeypatch: pytest.MonkeyPatch, recipe: Recipe, tmp_path: Path
) -> None:
    monkeypatch.setattr(VariablesPlan, "load_bytes", 1 << 60)  # more than any machine has free
    project = write_project(tmp_path, changed(recipe, "output.tables", "inline"))

    proof = command("run", project, "--json").json["verification"]

    assert (proof["proved"], proof["loaded_by"]) == (True, [])
    assert "not loaded here" in proof["note"]


def test_large_keras_embedding_is_linked_too(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    job = one_table_recipe("build_large_keras_table")
    prefix = save_checkpoint(job, tmp_path, attributes=add_gone_object)
    values = values_of(prefix)
    table, kernel, bias = (
        values[next(key for key in values if name in key)] for name in ("embed", "kernel", "bias")
    )
    monkeypatch.setattr(saved_model_job, "SMALL_BYTES_MAX", kernel.nbytes)  # what is not yet large
    recipe = changed(
        job.model_dump(mode="json", exclude_unset=True), "checkpoint.path", str(prefix)
    )
    project = write_project(tmp_path / "project", changed(recipe, "output.tables", "inline-link"))
    (note,) = command("plan", project, "--json").json["notes"]
    assert "also holds gone.weight [3, 5], which the model code lacks" in note
    page = command("run", project, "--json").json
    assert page["notes"] == [note]
    assert page["table_bytes"] == 20_000 * 4 * 4
    assert page["verification"]["examples"] == 256
    items = [0, 7, 19_999]
    results = results_of(Path(page["saved_model"]), {"item": items})
    np.testing.assert_allclose(results["tower"]["result"], table[items] @ kernel + bias, 1e-5, 1e-5)
