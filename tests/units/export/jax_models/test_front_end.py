"""A model of plain functions in JAX, from an Orbax checkpoint to a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.differential.random_models.serving import response_to
from tests.units.export.checkpoint.orbax_trees import write_item
from tests.units.export.job_runs import publish

pytest.importorskip("jax")

SHAPES = {"users": (60, 4), "genres": (9, 4), "layers.0.w": (9, 3), "layers.0.b": (3,)}
MODEL = """
import jax
import jax.numpy as jnp


def query(parameters, inputs):
    user = jnp.take(parameters["users"], inputs["user"] % 60, axis=0)
    liked = parameters["genres"][inputs["genres"]]  # ids below 0 count from the end
    mask = (inputs["genres"] != 0).astype(liked.dtype)[..., None]
    mask = mask * jnp.array([[1.0], [2.0], [3.0]])  # the last counts most
    mean = (liked * mask).sum(1) / jnp.maximum(mask.sum(1), 1)
    x = jnp.concatenate([user, mean, inputs["age"][:, None]], axis=-1)
    for layer in parameters["layers"]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return {"vector": x}


def candidate(parameters, inputs):
    return parameters["genres"][inputs["item"]][:, :3]


def build():
    shape = lambda *sizes: jax.ShapeDtypeStruct(sizes, jnp.float32)
    layers = [{"w": shape(9, 3), "b": shape(3)}]
    shapes = {"users": shape(60, 4), "genres": shape(9, 4), "layers": layers}
    return shapes, {"query": query, "candidate": candidate}
"""
KEYS = """
import jax
import jax.numpy as jnp

LAYERS = ["out", "in/~/out", "_out", "out layer", "out:0", "out:1", "$"]


def score(parameters, inputs):
    users = parameters["users/~/embed"]["embeddings"][inputs["user"]]
    x = users * parameters["users"]["~"]["embed"]["embeddings"][inputs["user"]]
    for key in LAYERS:
        x = jnp.tanh(x @ parameters[key]["w"] + parameters[key]["b"])
    return x[:, 0]


def build():
    shape = lambda *sizes: jax.ShapeDtypeStruct(sizes, jnp.float32)
    shapes = {key: {"w": shape(4, 4), "b": shape(4)} for key in LAYERS}
    shapes["users/~/embed"] = {"embeddings": shape(60, 4)}
    shapes["users"] = {"~": {"embed": {"embeddings": shape(60, 4)}}}
    return shapes, score
"""
ANY_BATCH = """
import jax
import jax.numpy as jnp


def score(parameters, inputs):
    rows = parameters["items"][inputs["item"]].squeeze()
    written = rows.at[:, 0].set(rows[:, 1]).at[:, 3].set(rows[:, 2])
    return (written * jnp.array([1.0, 5.0, 2.0, 3.0])).sum(1)


def build():
    return {"items": jax.ShapeDtypeStruct((60, 4), jnp.float32)}, score
"""
PADDED = {"dtype": "int32", "shape": [3], "pad": 0, "pad_side": "start", "keep": "last"}
PAGE: dict[str, Any] = {
    "model": "random",  # which the trial's service loads
    "checkpoint": {"path": "checkpoint"},
    "code": {"factory": "model.py:build", "table_threshold": 0},
    "output": {"root": "bundles"},
    "inputs": {
        "user": {"dtype": "int32"},
        "genres": PADDED,
        "age": {"dtype": "float32"},
        "item": {"dtype": "int32"},
    },
    "towers": {
        "query": {"role": "query", "call": "query", "outputs": {"vector": "vector"}},
        "candidate": {"role": "candidate", "call": "candidate"},
    },
    "corpora": {"items": {"file": "items.csv", "id": "item", "features": {"item": "item"}}},
    "indexes": {
        "items": {"corpus": "items", "query_tower": "query", "candidate_tower": "candidate"}
    },
}


def test_keys_of_parameters_may_have_any_characters(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(KEYS)
    random = np.random.default_rng(3)
    embeddings = ["users/~/embed.embeddings", "users.~.embed.embeddings"]
    stored = {name: random.normal(0, 0.5, (60, 4)).astype("f4") for name in embeddings}
    layers = ["out", "in/~/out", "_out", "out layer", "out:0", "out:1", "$"]
    for layer in layers:
        stored[f"{layer}.w"] = random.normal(0, 0.5, (4, 4)).astype("f4")
        stored[f"{layer}.b"] = random.normal(0, 0.5, 4).astype("f4")
    write_item(tmp_path / "checkpoint", stored)
    page = {
        **{name: PAGE[name] for name in ("model", "checkpoint", "code", "output")},
        "inputs": {"user": {"dtype": "int32"}},
        "towers": {"score": {"role": "ranking"}},
        "features": {"user": {"role": "candidate"}},
    }
    published = publish(page, tmp_path)
    assert sorted(published.manifest.tables) == ["embed", "users._.embed"]

    users = [0, 7, 59]
    body = {"candidate_features": {"user": users}}
    scores = response_to(tmp_path / "bundles", "rank", body)["scores"]
    x = stored[embeddings[0]][users] * stored[embeddings[1]][users]
    for layer in layers:
        x = np.tanh(x @ stored[f"{layer}.w"] + stored[f"{layer}.b"])
    np.testing.assert_allclose(scores, x[:, 0], rtol=1e-5, atol=1e-6)


def test_code_that_jax_traces_in_no_open_batch_is_traced_in_closed_ones(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(ANY_BATCH)
    items = np.random.default_rng(3).normal(0, 0.5, (60, 4)).astype("f4")
    write_item(tmp_path / "checkpoint", {"params.items": items})
    page = {
        **{name: PAGE[name] for name in ("model", "checkpoint", "code", "output")},
        "inputs": {"item": {"dtype": "int32", "shape": [1]}},
        "towers": {"score": {"role": "ranking"}},
        "features": {"item": {"role": "candidate"}},
    }
    published = publish(page, tmp_path)
    assert [note for note in published.notes if "not compiled" in note] == []
    body = {"candidate_features": {"item": [[0], [7], [59]]}}
    scores = response_to(tmp_path / "bundles", "rank", body)["scores"]
    rows = items[[0, 7, 59]]
    wanted = 6 * rows[:, 1] + 5 * rows[:, 2]
    np.testing.assert_allclose(scores, wanted, rtol=1e-5, atol=1e-6)


def test_lists_are_padded_and_cut_as_in_training_for_lookups_masks_and_indexes_alike(
    tmp_path: Path,
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "items.csv").write_text("\n".join(["item", *map(str, range(9))]))
    random = np.random.default_rng(3)
    stored = {name: random.normal(0, 0.5, shape).astype("f4") for name, shape in SHAPES.items()}
    moments = {f"opt_state.0.mu.{name}": values for name, values in stored.items()}
    tree = {f"params.{name}": values for name, values in stored.items()}
    write_item(tmp_path / "checkpoint", tree | moments)
    assert publish(PAGE, tmp_path).manifest.indexes["items"].recall.value == 1

    lists = [[4, 2], [], [1, 2, 3, 4, 5], [6, 0, 7]]
    trained = np.array([[0, 4, 2], [0, 0, 0], [3, 4, 5], [6, 0, 7]])
    users = [5, 59, 0, 7]
    ages = [0.5, -1.5, 0.0, 1.0]
    requests = [
        {"features": {"user": user, "genres": genres, "age": age}}
        for user, genres, age in zip(users, lists, ages, strict=True)
    ]
    body = {"tower": "query", "requests": requests}
    results = response_to(tmp_path / "bundles", "embed", body)["results"]
    vectors = [result["vector"] for result in results]
    mask = (trained != 0)[..., np.newaxis] * np.array([[1], [2], [3]])
    liked = (stored["genres"][trained] * mask).sum(1) / np.maximum(mask.sum(1), 1)
    x = np.concatenate([stored["users"][users], liked, np.array(ages)[:, None]], axis=1)
    wanted = np.tanh(x @ stored["layers.0.w"] + stored["layers.0.b"])
    np.testing.assert_allclose(vectors, wanted, rtol=1e-5, atol=1e-6)
