"""A model of plain functions in JAX, from an Orbax checkpoint to a bundle."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from bundle.features.columns import Column
from bundle.features.reader import open_features
from bundle.format.manifest import Manifest
from bundle.storage.catalog import read_manifest
from export.errors import UsageError
from export.jobs import bundle_job
from export.jobs.progress import Progress
from export.recipe.schema import ExportJob
from export.recipe.settings import ExportSettings
from runtime.tower_inputs import tower_inputs
from runtime.towers import open_tower

jax = pytest.importorskip("jax")
checkpoints = pytest.importorskip("orbax.checkpoint")

USERS = 60
GENRES = 9
DIM = 4
OUT = 3
MODEL = '''
"""Two towers of plain functions."""
import json
from pathlib import Path

import jax
import jax.numpy as jnp

SHAPES = json.loads(Path(__file__).with_name("shapes.json").read_text())


def query(parameters, inputs):
    user = jnp.take(parameters["users"], inputs["user"] % 60, axis=0)
    liked = parameters["genres"][inputs["genres"]]  # ids below 0 count from the end
    mask = (inputs["genres"] != 0).astype(liked.dtype)[..., None]
    mean = (liked * mask).sum(1) / jnp.maximum(mask.sum(1), 1)
    x = jnp.concatenate([user, mean, inputs["age"][:, None]], axis=-1)
    for layer in parameters["layers"]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return {"vector": x, "first": x[:, 0]}


def shapes():
    return jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(tuple(shape), jnp.float32),
        SHAPES,
        is_leaf=lambda part: isinstance(part, list) and all(isinstance(x, int) for x in part),
    )


def build():
    return shapes(), {"query": query}


def candidate(parameters, inputs):
    return parameters["genres"][inputs["item"]][:, :3]


def build_two_towers():
    return shapes(), {"query": query, "candidate": candidate}


'''
SHAPES = {
    "users": [USERS, DIM],
    "genres": [GENRES, DIM],
    "layers": [{"w": [2 * DIM + 1, OUT], "b": [OUT]}],
}


def parameters(seed: int = 3) -> dict[str, Any]:
    random = np.random.default_rng(seed)

    def array(*shape: int) -> Any:
        return random.normal(0, 0.5, shape).astype(np.float32)

    layers = [{"w": array(2 * DIM + 1, OUT), "b": array(OUT)}]
    return {"users": array(USERS, DIM), "genres": array(GENRES, DIM), "layers": layers}


def save(folder: Path, tree: Any) -> None:
    with checkpoints.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / "checkpoint", tree, force=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("jax")
    (root / "model.py").write_text(MODEL)
    (root / "shapes.json").write_text(json.dumps(SHAPES))
    stored = parameters()
    moments = {"0": {"mu": parameters(4), "nu": parameters(5)}}
    save(root, {"params": stored, "opt_state": moments, "step": np.int32(7)})
    return root


def job_of(**changes: Any) -> ExportJob:
    page = {
        "model": "plain",
        "checkpoint": {"path": "checkpoint"},
        "code": {"factory": "model.py:build"},
        "output": {"root": "bundles"},
        "inputs": {
            "user": {"dtype": "int32"},
            "genres": {
                "dtype": "int32",
                "shape": [3],
                "pad": 0,
                "pad_side": "start",
                "keep": "last",
            },
            "age": {"dtype": "float32"},
        },
        "towers": {
            "query": {
                "role": "query",
                "call": "query",
                "outputs": {"vector": "vector", "first": "first"},
                "result": "vector",
            }
        },
        "tables": {"users": {}, "genres": {}},
        **changes,
    }
    return ExportJob.model_validate(page)


@pytest.fixture(scope="module")
def published(folder: Path) -> Manifest:
    prepared = bundle_job.prepare(job_of(), folder, ExportSettings())
    bundle_job.run(prepared, ExportSettings(), Progress(Console(quiet=True)))
    return read_manifest(folder / "bundles" / "plain" / "1")


def test_index_whose_queries_take_the_mask_of_a_padded_history_is_published(
    folder: Path,
) -> None:
    rows = "".join(f"{row}\n" for row in range(GENRES))
    (folder / "items.csv").write_text(f"item\n{rows}")
    job = job_of()
    changes: dict[str, Any] = {
        "model": "two_towers",
        "code": {"factory": "model.py:build_two_towers"},
        "inputs": {
            **job.model_dump()["inputs"],
            "genres": {"dtype": "int32", "shape": [3]},
            "item": {"dtype": "int32"},
        },
        "towers": {
            "query": {"role": "query", "call": "query", "outputs": {"vector": "vector"}},
            "candidate": {"role": "candidate", "call": "candidate"},
        },
        "corpora": {"items": {"file": "items.csv", "id": "item", "features": {"item": "item"}}},
        "indexes": {
            "items": {
                "corpus": "items",
                "query_tower": "query",
                "candidate_tower": "candidate",
                "recall": {"k": 5},
            }
        },
    }
    prepared = bundle_job.prepare(job_of(**changes), folder, ExportSettings())
    bundle_job.run(prepared, ExportSettings(), Progress(Console(quiet=True)))

    manifest = read_manifest(folder / "bundles" / "two_towers" / "1")
    index = manifest.indexes["items"]
    assert index.recall.value == 1
    # Nobody can send an empty history: nothing pads it.
    assert index.recall_of_cold_users is None

    example = {"user": 3, "genres": [1, 2, 3], "age": 20.0, "item": 4}
    (folder / "examples.jsonl").write_text(f"{json.dumps(example)}\n" * 4)
    index_part = changes["indexes"]["items"]
    index_part["recall"]["of_cold_users"] = 0.5
    changes["verify"] = {"examples": "examples.jsonl"}
    prepared = bundle_job.prepare(job_of(**changes), folder, ExportSettings())
    with pytest.raises(
        UsageError, match=r"items\.recall\.of_cold_users is a limit .* tower 'query' has no bags"
    ):
        bundle_job.run(prepared, ExportSettings(), Progress(Console(quiet=True)))


def test_lists_are_padded_and_cut_as_in_training_for_lookups_and_masks_alike(
    folder: Path, published: Manifest
) -> None:
    lists = [[4], [], [1, 2, 3, 4, 5], [6, 0, 7]]
    trained = np.array([[0, 0, 4], [0, 0, 0], [3, 4, 5], [6, 0, 7]])
    users = np.array([5, 59, 0, 7])
    ages = np.array([0.5, -1.5, 0.0, 1.0], np.float32)
    values = np.array([genre for genres in lists for genre in genres])
    columns = {
        "user": Column(users),
        "genres": Column(values, np.cumsum([0, *map(len, lists)])),
        "age": Column(ages),
    }
    root = folder / "bundles" / "plain" / "1"
    tower = published.towers["query"]
    with closing(open_features(root, published)) as features:
        activations = features.activations(published.features, columns, len(lists))
        fitted = features.fit(columns, len(lists))
    inputs = {name: activation.values for name, activation in activations.items()}
    vectors = open_tower(root, tower, "f32").run(tower_inputs(tower.inputs, inputs, len(lists)))
    wanted = expected(parameters(), users, trained, ages)
    np.testing.assert_allclose(vectors["vector"], wanted, rtol=1e-5, atol=1e-6)
    assert (fitted.cut, fitted.padded) == ({"genres": 1}, {"genres": 2})


def expected(stored: dict[str, Any], users: Any, genres: Any, ages: Any) -> Any:
    """The model in NumPy."""
    mask = (genres != 0)[..., np.newaxis]
    liked = (stored["genres"][genres] * mask).sum(1) / np.maximum(mask.sum(1), 1)
    x = np.concatenate([stored["users"][users], liked, ages[:, np.newaxis]], axis=1)
    return np.tanh(x @ stored["layers"][0]["w"] + stored["layers"][0]["b"])
