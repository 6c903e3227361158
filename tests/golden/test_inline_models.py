"""Bags whose ids no rule tells, inside their towers: what both transports serve equals what the trained model gives."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rowcast_client import Client, RowcastError

from bundle.format.manifest import DenseFeature
from export.errors import NotConvertible
from export.frameworks.loading import load_tensorflow
from tests.e2e.process import Process
from tests.export.exporting import export
from tests.golden import inline_models
from tests.golden.rankers import as_sent, write_recipe

tf = load_tensorflow()
N = 24
INPUTS: dict[str, dict[str, str]] = {
    "ragged": {
        "tags": '{ dtype = "int64", kind = "ragged" }',
        "words": '{ dtype = "int32", kind = "ragged", length_max = 5 }',
    },
    "sparse": {
        "words": '{ dtype = "int64", kind = "sparse" }',
        "weights": '{ dtype = "float32", kind = "sparse", weights_for = "words" }',
        "age": '{ dtype = "float32" }',
    },
    "weighted": {"words": '{ dtype = "int64", kind = "ragged" }', "tags": '{ dtype = "int64", shape = [6] }'},
    "texts": {
        "colours": '{ dtype = "string", kind = "ragged" }',
        "words": '{ dtype = "string", kind = "sparse" }',
        "city": '{ dtype = "string" }',
    },
    "columns": {
        "words": '{ dtype = "int64", kind = "sparse" }',
        "weights": '{ dtype = "float32", kind = "sparse", weights_for = "words" }',
        "recent": '{ dtype = "int64", shape = [4] }',
        "item": '{ dtype = "int64" }',
    },
    "both": {"words": '{ dtype = "int64", kind = "ragged" }'},
    "padded": {"tags": '{ dtype = "int64", kind = "ragged" }', "recent": '{ dtype = "int64", shape = [4] }'},
}
INSIDE = {
    "ragged": {"tags": "117.2 KiB", "words": "78.1 KiB"},
    "sparse": {"words": "117.2 KiB"},
    "weighted": {"words": "117.2 KiB", "tags": "3.5 KiB"},
    "columns": {"columns.words": "117.2 KiB", "recent": "4.7 KiB", "item": "3.5 KiB", "pair": "2.3 KiB"},
    "both": {"pairs": "3.5 KiB"},
    "texts": {"colours": "80 B", "words": "7.0 KiB", "cities": "3.5 KiB"},
    "padded": {"embedding": "117.2 KiB", "items": "7.0 KiB"},
}
BEYOND: dict[str, list[list[int]]] = {"weighted": [[9999] * 6] * N, "padded": [[9999]] * N}
"""Ids of `tags` past the end of a table that a tower reads itself: one of TensorFlow, and one of LiteRT."""


def bags(random: np.random.Generator, low: int, high: int, last: int = 0) -> list[list[int]]:
    """Bags of 0 to 5 ids, `last` in the last one: `embedding_lookup_sparse` itself drops empty ones there."""
    sizes = [0, *random.integers(0, 6, N - 2).tolist(), last]
    return [random.integers(low, high, size).tolist() for size in sizes]


def requests(model: str) -> dict[str, list[Any]]:
    random = np.random.default_rng(13)
    if model == "ragged":
        return {"tags": bags(random, 0, 1 << 40, 3), "words": bags(random, 0, 1 << 30)}
    if model in ("sparse", "columns"):
        ids = bags(random, -1 << 12 if model == "sparse" else 0, 1 << 40)
        ids[3:5] = [[-1, -2], [-7]] if model == "sparse" else [[1], []]
        weighted = [{"ids": each, "weights": random.choice([0.0, 0.5, 2.0], len(each)).tolist()} for each in ids]
        if model == "sparse":
            return {"words": weighted, "age": random.normal(size=N).astype(np.float32).tolist()}
        return {
            "words": weighted,
            "recent": random.integers(-1, 900, (N, 4)).tolist(),
            "item": random.integers(0, 1 << 20, N).tolist(),
        }
    if model == "texts":
        words = {"colours": ["Red", "GREEN", "blue", "grey", "Ö"], "words": ["a!", "b c", "a", "..", ""]}
        listed: dict[str, list[Any]] = {
            name: [random.choice(some, len(bag)).tolist() for bag in bags(random, 0, 2)] for name, some in words.items()
        }
        return listed | {"city": random.choice(["Berlin", "Bern", "Rome"], N).tolist()}
    if model == "both":
        return {"words": bags(random, 0, 5000)}
    if model == "weighted":
        return {"words": bags(random, 0, 5000, 2), "tags": random.integers(0, 300, (N, 6)).tolist()}
    return {"tags": bags(random, 0, 5000), "recent": random.integers(-2, 1 << 40, (N, 4)).tolist()}


def tensors(model: str, sent: dict[str, list[Any]]) -> dict[str, Any]:
    """What a request is to the model itself."""
    made = {}
    if model in ("sparse", "columns"):
        parts = {name: [each[name] for each in sent["words"]] for name in ("ids", "weights")}
        sent = {**sent, "words": parts["ids"], "weights": parts["weights"]}
    for name, value in sent.items():
        page = INPUTS[model][name]
        make = tf.constant if "kind" not in page else tf.ragged.constant
        made[name] = make(value, tf.as_dtype(page.split('"')[1]))
        made[name] = made[name].to_sparse() if "sparse" in page else made[name]
    return made


def train(name: str, given: dict[str, Any], directory: Path) -> Any:
    """Saves a model; returns its scores."""
    tf.random.set_seed(5)
    model = getattr(inline_models, f"build_{name}")()
    scores = model(given)["score"].numpy()
    assert np.unique(scores).size > N / 2
    tf.train.Checkpoint(model=model).write(str(directory / "ckpt" / "model"))
    return scores


def recipe_of(name: str, directory: Path, roles: dict[str, str]) -> Path:
    lines = [f"inputs.{each} = {page}" for each, page in INPUTS[name].items()]
    lines += [f'features.{each}.role = "{role}"' for each, role in roles.items()]
    return write_recipe(directory, inline_models, name, lines, ["score"])


@pytest.mark.parametrize("name", list(INPUTS))
def test_bags_inside_towers_equal_the_trained_model_over_both_transports(name: str, tmp_path: Path) -> None:
    sent = requests(name)
    trained = train(name, tensors(name, sent), tmp_path)
    published = export(recipe_of(name, tmp_path, dict.fromkeys(sent, "candidate")))
    page, by_tensorflow = published.page, name in ("sparse", "weighted", "texts", "columns")
    assert set(page.tables) == ({"words"} if name == "both" else set())
    assert {form.kind for form in page.towers["ranking"].forms} == {"saved_model"} | (
        set() if by_tensorflow else {"litert"}
    )
    for table, size in INSIDE[name].items():
        assert any(re.search(rf"{table}.*{size}.*stays inside the towers", note) for note in published.notes)
    taken = {each.take for each in page.features.values() if isinstance(each, DenseFeature)}
    assert taken >= {"lengths", "padded"} | ({"values", "weights"} if name in ("sparse", "columns") else set())
    service = Process(tmp_path / "bundles")
    try:
        service.event("version_available")
        for transport in ("http", "grpc"):
            with Client(f"{transport}://127.0.0.1:{service.ports[transport]}") as client:
                found = client.rank({}, features=sent)[0]
                scores = [item.score for item in as_sent(found)]
                np.testing.assert_allclose(scores, trained, rtol=1e-5, atol=1e-5)
                told = {each.name: each for each in client.model("inline_models").calls[0].features}
                if name == "sparse":
                    words = told["words"]
                    assert (words.kind, words.type, words.length, words.weighted) == ("bag", "int64", 64, True)
                if name == "ragged":
                    with pytest.raises(RowcastError, match="example 0 has 6 values; a tower takes 5 at most"):
                        client.rank({}, features={**sent, "words": [[1] * 6] * N})
                if name in BEYOND:
                    with pytest.raises(RowcastError, match="looks up itself may lie beyond its tables") as refused:
                        client.rank({}, features={**sent, "tags": BEYOND[name]})
                    assert refused.value.code == "INVALID_ARGUMENT"
        assert ("libtensorflow" in Path(f"/proc/{service.process.pid}/maps").read_text()) == by_tensorflow
    finally:
        service.kill()


def test_bag_of_a_context_beside_bags_of_candidates_equals_the_trained_model(tmp_path: Path) -> None:
    sent = requests("ragged")
    tags = [3, 1 << 33, 3, 77]
    trained = train("ragged", tensors("ragged", {**sent, "tags": [tags] * N}), tmp_path)
    export(recipe_of("ragged", tmp_path, {"tags": "context", "words": "candidate"}))
    service = Process(tmp_path / "bundles")
    try:
        service.event("version_available")
        for transport in ("http", "grpc"):
            with Client(f"{transport}://127.0.0.1:{service.ports[transport]}") as client:
                found = client.rank({"tags": tags}, features={"words": sent["words"]})[0]
                scores = [item.score for item in as_sent(found)]
                np.testing.assert_allclose(scores, trained, rtol=1e-5, atol=1e-5)
    finally:
        service.kill()


@pytest.mark.parametrize("name", ["ragged", "sparse", "columns"])
def test_bags_of_a_table_beyond_the_limit_are_refused_with_the_line(name: str, tmp_path: Path) -> None:
    train(name, tensors(name, requests(name)), tmp_path)
    recipe = recipe_of(name, tmp_path, {})
    recipe.write_text(recipe.read_text().replace("table_threshold = 0", "inline_bytes_max = 65536"))
    told = r"its ids are computed by operation .*inline_models.py:\d+.*larger than code.inline_bytes_max"
    with pytest.raises(NotConvertible, match=told):
        export(recipe)
