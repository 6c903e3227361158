"""Models of Keras 3 that JAX trained, exported from every form in which Keras saves them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.format.manifest import EmbeddedFeature, Manifest
from bundle.storage.catalog import read_manifest
from export.errors import VerificationFailed
from runtime.towers import open_tower
from tests.models import keras_3
from tests.units.export.checkpoint.orbax_trees import write_item
from tests.units.export.job_runs import assert_refused, prepare, publish
from tests.units.export.traced_models import MODELS

pytest.importorskip("jax")
pytest.importorskip("keras_rs")
pytest.importorskip("orbax.checkpoint")

# The gate has plans of the same models, and random models of Keras.
pytestmark = pytest.mark.nightly

FORMS = ("model.keras", "orbax")
INPUTS = {
    "user": {"dtype": "int32"},
    "age": {"dtype": "float32"},
    "movie": {"dtype": "int32"},
    "genres": {"dtype": "int32", "shape": [keras_3.SLOTS]},
}
TOWERS = {
    "query": {"role": "query", "call": "query", "inputs": ["user", "age"]},
    "candidate": {"role": "candidate", "call": "candidate", "inputs": ["movie", "genres"]},
}
IDS = {"dtype": "int32", "shape": [keras_3.SLOTS]}
RANKER: dict[str, Any] = {
    "code": {"factory": "keras_3.py:build_ranker", "table_threshold": 1},
    "inputs": {"user": IDS, "movie": IDS},
    "towers": {"score": {"role": "ranking"}},
    "features": {"movie": {"role": "candidate"}},
}
RANKER_TABLES = {
    "embed.user_table": "ranker.embed.user_table.embeddings",
    "embed.movie_table": "ranker.embed.movie_table.embeddings",
}
CORES = 2
"""SparseCores of the stack that stands for the tables of a ranker trained on a TPU."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What train_keras_3.py writes: in JAX, which Keras cannot run beside TensorFlow."""
    folder = tmp_path_factory.mktemp("keras_on_jax")
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    environment.pop("PYTHONPATH", None)
    command = [sys.executable, str(MODELS / "train_keras_3.py"), str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def page_of(saved: Path, output: Path, **changes: Any) -> dict[str, Any]:
    return {
        "model": "tested",
        "checkpoint": {"path": str(saved)},
        "code": coded("build"),
        "output": {"root": str(output)},
        "inputs": INPUTS,
        "towers": TOWERS,
        **changes,
    }


def coded(factory: str) -> dict[str, Any]:
    return {"factory": f"keras_3.py:{factory}", "table_threshold": 1}


def published(saved: Path, output: Path, **changes: Any) -> Manifest:
    return publish(page_of(saved, output, **changes), MODELS).manifest


def arrays(file: Path) -> dict[str, Any]:
    with np.load(file) as stored:
        return {name: stored[name] for name in stored.files}


def check_towers(
    bundle: Path, folder: Path, tables: Mapping[str, str], names: Mapping[str, str]
) -> None:
    """Compares both forms of each tower with what Keras returned in JAX.

    Args:
      bundle: The bundle.
      folder: The folder in which the model was trained.
      tables: The path of each table's variable.
      names: The result of the model that each tower's output is compared with.
    """
    manifest = read_manifest(bundle)
    expected = arrays(folder / "expected.npz")
    variables = arrays(folder / "variables.npz")
    for name, tower in manifest.towers.items():
        assert {form.kind for form in tower.forms} == {"saved_model", "litert"}
        arguments = {}
        for tensor in tower.inputs:
            feature = manifest.features[tensor.sources[0].partition("@")[0]]
            values = expected[tensor.sources[0].partition("@")[0]]
            if isinstance(feature, EmbeddedFeature):
                values = variables[tables[feature.table]][values]
            arguments[tensor.name] = values
        for form in tower.forms:
            opened = open_tower(bundle, tower.model_copy(update={"forms": (form,)}), "f32")
            (result,) = opened.run(arguments).values()
            np.testing.assert_allclose(result, expected[names[name]], rtol=1e-5, atol=1e-6)


TABLES = {
    "users": "two_tower.users.embeddings",
    "movies": "two_tower.embedding.embeddings",
    "genres": "two_tower.embedding_1.embeddings",
}


@pytest.mark.parametrize("form", FORMS)
def test_towers_of_every_form_give_what_keras_gives_in_jax(
    form: str, trained: Path, tmp_path: Path
) -> None:
    folder = trained / "first"
    manifest = published(folder / form, tmp_path)
    assert {name: table.rows for name, table in manifest.tables.items()} == {
        "users": keras_3.USERS,
        "movies": keras_3.MOVIES,
        "genres": keras_3.GENRES,
    }
    check_towers(
        tmp_path / "tested" / "1", folder, TABLES, {"query": "query", "candidate": "candidate"}
    )


def test_distributed_embedding_of_keras_rs_gives_what_it_gives_in_jax(
    trained: Path, tmp_path: Path
) -> None:
    folder = trained / "ranker"
    manifest = published(folder / "orbax", tmp_path, **RANKER)
    assert set(manifest.tables) == {*RANKER_TABLES}
    check_towers(tmp_path / "tested" / "1", folder, RANKER_TABLES, {"score": "score"})


def stacked(users: np.ndarray[Any, Any], movies: np.ndarray[Any, Any]) -> Any:
    """Returns two tables as a SparseCore stack: movies behind users, turned by one core."""
    users_rows = len(users) // CORES
    stack = np.full((CORES, users_rows + len(movies) // CORES, keras_3.DIM), np.nan, np.float32)
    for row, vector in enumerate(users):
        stack[row % CORES, row // CORES] = vector
    for row, vector in enumerate(movies):
        stack[(row + 1) % CORES, users_rows + row // CORES] = vector
    return stack.reshape(-1, keras_3.DIM)


def write_on_sparse_cores(folder: Path, ranker: Path, accumulators: Any) -> None:
    """Writes a ranker's variables as training on a TPU would: one stack instead of two tables."""
    variables = arrays(ranker / "variables.npz")
    dense = {path: values for path, values in variables.items() if "_table" not in path}
    stack = stacked(
        variables["ranker.embed.user_table.embeddings"],
        variables["ranker.embed.movie_table.embeddings"],
    )
    tree = {f"trainable_variables.{path}": values for path, values in dense.items()}
    path = "trainable_variables.ranker.embed.var:user_table_movie_table:table"
    tree[path] = stack
    tree[f"{path}:slot:accumulator"] = accumulators
    tree["optimizer_variables.adam.iteration"] = np.int32(6)
    write_item(folder / "checkpoint", tree, zarr3=True)


def write_trained_ids(folder: Path) -> tuple[dict[str, str], Any]:
    """Writes the ids that occurred in training, half of them; returns the file of each table, and
    the optimizer's accumulators, which grew for these ids alone.
    """
    random = np.random.default_rng(2)
    files = {}
    tables = []
    for name, rows in (("user_table", keras_3.USERS), ("movie_table", keras_3.MOVIES)):
        accumulators = np.full((rows, keras_3.DIM), 0.1, np.float32)
        read = np.flatnonzero(random.random(rows) < 0.5)
        accumulators[read] += random.random((len(read), keras_3.DIM)).astype(np.float32)
        (folder / f"{name}.txt").write_text("\n".join(map(str, read)))
        files[f"embed.{name}"] = str(folder / f"{name}.txt")
        tables.append(accumulators)
    return files, np.nan_to_num(stacked(*tables), nan=0.1)


def test_layouts_on_sparse_cores_are_derived_from_ids_of_training(
    trained: Path, tmp_path: Path
) -> None:
    trained_ids, accumulators = write_trained_ids(tmp_path)
    write_on_sparse_cores(tmp_path, trained / "ranker", accumulators)
    stored = tmp_path / "checkpoint"
    words = ("'embed.movie_table'", "SparseCore stack", "--layout FILE")
    assert_refused(page_of(stored, tmp_path, **RANKER), MODELS, *words)
    checkpoint = {"path": str(stored), "layout": "derive"}
    verify = {"trained_ids": trained_ids}
    manifest = published(stored, tmp_path, **RANKER, checkpoint=checkpoint, verify=verify)
    checks = manifest.verification.tables.values()
    assert {check.stated_layout for check in checks} == {"derived"}
    bundle = tmp_path / "tested" / "1"
    check_towers(bundle, trained / "ranker", RANKER_TABLES, {"score": "score"})


def test_second_model_of_a_process_is_exported_under_its_names(
    trained: Path, tmp_path: Path
) -> None:
    """The cure of a message below."""
    numbered = {
        "users": "two_tower.users.embeddings",
        "movies": "two_tower.embedding_2.embeddings",
        "genres": "two_tower.embedding_3.embeddings",
    }
    published(trained / "second/orbax", tmp_path, code=coded("build_as_second"))
    results = {"query": "query", "candidate": "candidate"}
    check_towers(tmp_path / "tested" / "1", trained / "second", numbered, results)


def recorded(folder: Path, file: Path, inputs: Collection[str]) -> str:
    """Writes what the trained model returned, beside the inputs, and returns the file."""
    columns = arrays(folder / "expected.npz")
    assert columns.keys() >= {*inputs}
    lines = [
        json.dumps({name: values[row].tolist() for name, values in columns.items()})
        for row in range(len(next(iter(columns.values()))))
    ]
    file.write_text("\n".join(lines))
    return str(file)


RECML = pytest.param(
    "recml/checkpoints",
    marks=pytest.mark.skipif(find_spec("recml") is None, reason="RecML is not installed"),
)
BOTH = {"query.result": "query", "candidate.result": "candidate"}
NUMBERS = {"numbers": {"dtype": "float32", "shape": [2]}}


@pytest.mark.parametrize("name", ["keras_trainer", "jax_trainer", RECML])
def test_towers_of_lists_give_what_keras_gives_in_jax(
    name: str, trained: Path, tmp_path: Path
) -> None:
    folder = trained / "first"
    examples = recorded(folder, tmp_path / "examples.jsonl", INPUTS.keys())
    published(folder / name, tmp_path, verify={"examples": examples, "expected": BOTH})
    results = {"query": "query", "candidate": "candidate"}
    check_towers(tmp_path / "tested" / "1", folder, TABLES, results)


def test_lists_of_a_model_with_another_order_are_rejected_by_recorded_outputs(
    trained: Path, tmp_path: Path
) -> None:
    examples = recorded(trained / "twins", tmp_path / "examples.jsonl", NUMBERS.keys())
    changes: dict[str, Any] = {
        "inputs": NUMBERS,
        "towers": {"tower": {"role": "query"}},
        "verify": {"examples": examples, "expected": {"result": "call"}},
    }
    lists = trained / "twins" / "jax_trainer"
    published(lists, tmp_path, **changes, code={"factory": "keras_3.py:build_twins"})
    with pytest.raises(VerificationFailed, match=r"differs from verify\.expected"):
        published(lists, tmp_path, **changes, code={"factory": "keras_3.py:build_exchanged"})


def test_layers_without_variables_are_made_by_a_call_in_the_factory(
    trained: Path, tmp_path: Path
) -> None:
    folder = trained / "first"
    examples = recorded(folder, tmp_path / "examples.jsonl", INPUTS.keys())
    changes: dict[str, Any] = {
        "towers": {"query": TOWERS["query"]},
        "inputs": {name: INPUTS[name] for name in ("user", "age")},
        "verify": {"examples": examples, "expected": {"result": "query"}},
    }
    page = page_of(folder / "lists", tmp_path, **changes)
    assert_refused(page, MODELS, "has 13 variables", "call the model once in the factory")
    published(folder / "lists", tmp_path, **changes, code=coded("build_called"))
    check_towers(tmp_path / "tested" / "1", folder, TABLES, {"query": "query"})


NUMBERS_OF_LEFT: dict[str, Any] = {
    "inputs": NUMBERS,
    "towers": {"left": {"role": "query", "call": "left"}},
}
REFUSED: dict[str, tuple[str, str, dict[str, Any], tuple[str, ...]]] = {
    "second model of a process": (
        "second/orbax",
        "build",
        {},
        ("'sequential_1'", 'name="sequential_1"', "model.save_weights"),
    ),
    "variable that was not saved by Orbax": (
        "first/orbax",
        "build_with_more",
        {},
        ("shift/kernel", "[4, 4] (keras_3.py:", "not in the checkpoint"),
    ),
    "either of two layers": (
        "twins/orbax",
        "build_left",
        NUMBERS_OF_LEFT,
        ("deep/kernel", "twins.left.deep.kernel", "checkpoint.object_path"),
    ),
    "variables of one shape in lists": (
        "first/keras_trainer",
        "build",
        {},
        ("sequential/dense_1/kernel", "dense_3/kernel", "[6, 4]", "verify.expected"),
    ),
}
"""What was saved, the factory, other sections of the recipe, and words of the message."""


@pytest.mark.parametrize(("saved", "factory", "changes", "words"), REFUSED.values(), ids=REFUSED)
def test_model_that_does_not_fit_what_was_saved_is_refused_with_the_cure(
    saved: str,
    factory: str,
    changes: dict[str, Any],
    words: tuple[str, ...],
    trained: Path,
    tmp_path: Path,
) -> None:
    page = page_of(trained / saved, tmp_path, code=coded(factory), **changes)
    assert_refused(page, MODELS, *words)


def test_object_path_says_which_of_two_layers_is_meant(trained: Path, tmp_path: Path) -> None:
    """The cure of a message above."""
    checkpoint = {"path": str(trained / "twins/orbax"), "object_path": "twins/left"}
    page = page_of(
        trained, tmp_path, code=coded("build_left"), checkpoint=checkpoint, **NUMBERS_OF_LEFT
    )
    planned = prepare(page, MODELS).traced
    found = planned.original.find_weights(planned.towers[0].variables)
    assert {key.rpartition("twins.")[2] for _, key in found} == {
        "left.deep.kernel",
        "left.deep.bias",
    }
