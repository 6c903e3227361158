"""A Keras model over feature columns: what is served equals what the trained model gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console

from bundle.format.manifest import DenseFeature, Manifest
from export.frameworks.loading import load_tensorflow
from export.jobs.progress import Progress
from export.jobs.saved_model_job import prepare_inline, run_inline
from export.recipe.schema import read_recipe
from export.recipe.settings import ExportSettings
from tests.e2e.process import Process, until
from tests.export.exporting import export
from tests.golden import column_models

tf = load_tensorflow()
N = 16
RECIPE = """
model = "goods"
checkpoint = { path = "ckpt", object_path = "model" }
code = { factory = "FOLDER/column_models.py:build" }
output = { root = "bundles" }
features.shop.role = "candidate"
towers.ranking = { role = "ranking", outputs = { score = "score" } }
[inputs]
price = { dtype = "float32" }
size = { dtype = "float32", shape = [2] }
shop = { dtype = "int64", shape = [1] }
brand = { dtype = "int64", shape = [1] }
tags = { dtype = "int64", shape = [3] }
color = { dtype = "string" }
labels = { dtype = "int64", shape = [3] }
labels_weights = { dtype = "float32", shape = [3], weights_for = "labels" }
day = { dtype = "int64" }
history = { dtype = "int64", shape = [5] }
sites = { dtype = "int64", shape = [2] }
"""


def inputs() -> dict[str, NDArray[Any]]:
    random = np.random.default_rng(5)
    history = random.integers(0, 50, (N, column_models.PLACES))
    history[np.arange(column_models.PLACES) >= np.arange(N)[:, np.newaxis] % 6] = -1
    return {
        "price": random.random(N).astype(np.float32) * 20,
        "size": random.random((N, 2)).astype(np.float32),
        "shop": random.integers(0, 40, (N, 1)),
        "brand": random.integers(0, 30, (N, 1)),
        "tags": random.integers(0, 25, (N, 3)),
        "color": np.array(["red", "blue", "green", ""] * (N // 4), object),
        "labels": np.array([[3, 11, -1], [7, -1, -1]] * (N // 2)),
        "labels_weights": np.array([[0.5, 2.0, 0.0], [3.0, 0.0, 0.0]] * (N // 2), np.float32),
        "day": random.integers(0, 7, N),
        "history": history,
        "sites": random.integers(0, (100, 60), (N, 2)),
    }


def sent() -> dict[str, Any]:
    """As callers send it: a history holds what there is of it."""
    values = {name: array.tolist() for name, array in inputs().items()}
    values["history"] = [[each for each in row if each >= 0] for row in values["history"]]
    return values


def asked(place: int) -> dict[str, Any]:
    values = {name: value[place] for name, value in sent().items()}
    values["labels"] = {"ids": values["labels"], "weights": values.pop("labels_weights")}
    return {"features": {"shop": [values.pop("shop")]}, "context": values}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("columns")


@pytest.fixture(scope="module")
def trained(folder: Path) -> NDArray[np.float32]:
    tf.random.set_seed(1)
    model = column_models.build()
    scores: NDArray[np.float32] = model({name: tf.constant(value) for name, value in inputs().items()})["score"].numpy()
    tf.train.Checkpoint(model=model).save(str(folder / "ckpt" / "model"))
    return scores


@pytest.fixture(scope="module")
def page(folder: Path, trained: NDArray[np.float32]) -> Manifest:
    recipe = folder / "recipe.toml"
    recipe.write_text(RECIPE.replace("FOLDER", str(Path(__file__).parent)))
    return export(recipe).page


def test_columns_served_answers_equal_the_trained_model(
    folder: Path, page: Manifest, trained: NDArray[np.float32]
) -> None:
    service = Process(folder / "bundles")
    try:
        with service.client() as client:
            until(lambda: client.get("/readyz").status_code == 200)
            requests = [asked(place) for place in range(N)]
            answer = client.post(f"/v1/models/{page.model}:rank", json={"requests": requests})
            beyond = {**requests[0], "features": {"shop": [[40]]}}
            refused = client.post(f"/v1/models/{page.model}:rank", json=beyond)
    finally:
        service.kill()
    assert answer.status_code == 200, answer.text
    scores = [result["scores"][0] for result in answer.json()["results"]]
    np.testing.assert_allclose(scores, trained, rtol=1e-5, atol=1e-5)
    assert refused.json()["error"]["code"] == "INVALID_ARGUMENT"
    assert "40 is no row of its table" in refused.json()["error"]["message"]


def test_columns_in_a_self_contained_saved_model_equal_the_trained_model(
    folder: Path, trained: NDArray[np.float32]
) -> None:
    recipe = folder / "inline.toml"
    told = 'output = { root = "inline", tables = "inline" }'
    text = RECIPE.replace('output = { root = "bundles" }', told)
    recipe.write_text(text.replace("FOLDER", str(Path(__file__).parent)))
    prepared = prepare_inline(read_recipe(recipe), folder, ExportSettings())
    published = run_inline(prepared, ExportSettings(), Progress(Console(quiet=True)))
    serve = tf.saved_model.load(str(published.directory)).signatures["ranking"]
    found = serve(**{name: tf.constant(value) for name, value in inputs().items()})
    np.testing.assert_allclose(found["score"].numpy(), trained, rtol=1e-5, atol=1e-5)


def test_columns_page_tells_what_stays_inside(page: Manifest) -> None:
    inside = {name: each.below for name, each in page.features.items() if isinstance(each, DenseFeature) and each.below}
    assert inside == {"shop@values": 40, "brand@values": 30, "tags@values": 25}
    lengths = page.features["history@lengths"]
    assert isinstance(lengths, DenseFeature)
    assert lengths.take == "lengths"
    assert set(page.tables) == {
        "deep_columns.brand_embedding",
        "deep_columns.color_embedding",
        "deep_columns.labels_weighted_by_labels_weights_embedding",
        "deep_columns.shop_embedding",
        "deep_columns.tags_embedding",
        "deep_columns.brand_X_color_embedding",
        "deep_columns.brand_X_price_bucketized_embedding",
        "deep_columns.price_bucketized_embedding",
        "deep_columns.size_bucketized_embedding",
        "computed_columns.tenth_embedding",
        "computed_columns.place_embedding",
        "computed_columns.place_X_tenth_embedding",
        "pairs",
        "sites.0",
        "sites.1",
        "sequence_columns.history_embedding",
    }
    assert {form.kind for form in page.towers["ranking"].forms} == {"saved_model", "litert"}
