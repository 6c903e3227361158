"""A Keras model over feature columns: what is served, or exported whole, equals what the trained model gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from rowcast_client import RowcastError

from bundle.format.manifest import DenseFeature, Manifest
from export.frameworks.loading import load_tensorflow
from tests.export.exporting import export
from tests.golden import column_models
from tests.golden.rankers import assert_ranked, saved_model_scores, serving, write_recipe

tf = load_tensorflow()
N = 16
INPUTS = """
features.shop.role = "candidate"
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


def contexts() -> list[dict[str, Any]]:
    """As callers send them: a history holds what there is of it."""
    values = {name: array.tolist() for name, array in inputs().items() if name != "shop"}
    found = [{name: value[place] for name, value in values.items()} for place in range(N)]
    for each in found:
        each["history"] = [one for one in each["history"] if one >= 0]
        each["labels"] = {"ids": each["labels"], "weights": each.pop("labels_weights")}
    return found


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("columns")
    return write_recipe(folder, column_models, "WideAndDeep", [INPUTS], ["score"])


@pytest.fixture(scope="module")
def trained(recipe: Path) -> NDArray[np.float32]:
    tf.random.set_seed(1)
    model = column_models.WideAndDeep()
    scores: NDArray[np.float32] = model({name: tf.constant(value) for name, value in inputs().items()})["score"].numpy()
    tf.train.Checkpoint(model=model).save(str(recipe.parent / "ckpt" / "model"))
    return scores


@pytest.fixture(scope="module")
def page(recipe: Path, trained: NDArray[np.float32]) -> Manifest:
    recipe.write_text(recipe.read_text().replace(", table_threshold = 0", ""))
    return export(recipe).page


def test_columns_served_answers_equal_the_trained_model(
    recipe: Path, page: Manifest, trained: NDArray[np.float32]
) -> None:
    assert {form.kind for form in page.towers["ranking"].forms} == {"saved_model", "litert"}
    inside = {name: each.below for name, each in page.features.items() if isinstance(each, DenseFeature) and each.below}
    assert inside == {"shop@values": 40, "brand@values": 30, "tags@values": 25}
    shops = inputs()["shop"].tolist()
    with serving(recipe.parent / "bundles") as clients:
        for client in clients:
            for context, shop, score in zip(contexts(), shops, trained, strict=True):
                assert_ranked(client, {"score": score}, {"shop": [shop]}, context)
            with pytest.raises(RowcastError, match="40 is no row of its table") as refused:
                client.rank(contexts()[0], features={"shop": [[40]]})
            assert refused.value.code == "INVALID_ARGUMENT"


def test_columns_in_a_self_contained_saved_model_equal_the_trained_model(
    recipe: Path, trained: NDArray[np.float32], tmp_path: Path
) -> None:
    inline = tmp_path / "recipe.toml"
    text = recipe.read_text().replace('root = "bundles"', 'root = "inline", tables = "inline"')
    inline.write_text(text.replace('path = "ckpt"', f'path = "{recipe.parent}/ckpt"'))
    np.testing.assert_allclose(saved_model_scores(inline, inputs()), trained, rtol=1e-5, atol=1e-5)
