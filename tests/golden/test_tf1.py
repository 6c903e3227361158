"""A ranker trained by a program of TF1 and saved by its Saver: what is served equals what its session predicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray

from bundle.format.manifest import EmbeddedFeature
from tests.export.exporting import export
from tests.golden import tf1_ranker
from tests.golden.rankers import assert_ranked, serving

pytestmark = pytest.mark.filterwarnings("ignore:`layer.add_variable` is deprecated")  # TF1's linear_model does it

v1 = tf.compat.v1
N = 12
Values = dict[str, NDArray[Any]]

RECIPE = """
model = "ads"
checkpoint = { path = "ckpt" }
code = { factory = "FOLDER/tf1_ranker.py:build" }
output = { root = "bundles" }
towers.ranking = { role = "ranking", outputs = { click = "click", buy = "buy" }, result = "click" }
features = { ad = { role = "candidate" }, zone = { role = "candidate" }, shop = { role = "candidate" } }
[inputs]
user = { dtype = "int64" }
city = { dtype = "string" }
kind = { dtype = "string", shape = [3] }
tags = { dtype = "int64", kind = "sparse" }
tags_weights = { dtype = "float32", kind = "sparse", weights_for = "tags" }
seen = { dtype = "int64", shape = [5] }
liked = { dtype = "int32", shape = [1] }
years = { dtype = "float32", shape = [1] }
ad = { dtype = "int64" }
zone = { dtype = "int64", shape = [2] }
shop = { dtype = "int64" }
"""
CONTEXT = {
    "user": 250,  # beyond the table: its column's default
    "city": "Zürich",
    "kind": ["b", "", "zebra"],
    "tags": {"ids": [3, 39, 3], "weights": [0.5, 2.0, 0.0]},
    "seen": [7, -1, 49, 7, -1],
    "liked": [11],
    "years": [40.0],
}


def candidates() -> Values:
    random = np.random.default_rng(3)
    zone = random.integers(0, 1 << 40, (N, 2))
    zone[::3, 1] = -1
    return {"ad": random.integers(0, 30, N), "zone": zone, "shop": random.integers(0, 31, N)}


def fed() -> dict[str, Any]:
    """What the program feeds for the context and all candidates."""
    tags = CONTEXT["tags"]
    assert isinstance(tags, dict)
    places = [(example, place) for example in range(N) for place in range(3)]
    sparse = {name: v1.SparseTensorValue(places, np.tile(tags[key], N), (N, 3)) for name, key in SPARSE.items()}
    plain = {name: np.array([value] * N) for name, value in CONTEXT.items() if name != "tags"}
    return {**plain, **candidates(), **sparse}


SPARSE = {"tags": "ids", "tags_weights": "weights"}


def train(prefix: Path) -> Values:
    """Trains for a step, saves as programs of TF1 do, and returns the predictions for what is fed."""
    shapes = {"kind": [3], "seen": [5], "liked": [1], "years": [1], "zone": [2]}
    strings = ("city", "kind")
    with tf.Graph().as_default(), v1.Session() as session:
        inputs: dict[str, Any] = {}
        for name, value in fed().items():
            if name in SPARSE:
                inputs[name] = v1.sparse_placeholder(tf.int64 if name == "tags" else tf.float32)
                continue
            dtype = tf.string if name in strings else tf.float32 if name == "years" else tf.as_dtype(value.dtype)
            inputs[name] = v1.placeholder(dtype, [None, *shapes.get(name, [])])
        predictions = tf1_ranker.build()(inputs)
        loss = tf.reduce_mean(predictions["click"] - predictions["buy"])
        step = v1.train.AdagradOptimizer(0.5).minimize(loss, v1.train.get_global_step())
        session.run([v1.global_variables_initializer(), v1.tables_initializer()])
        feed = {inputs[name]: value for name, value in fed().items()}
        session.run(step, feed)
        v1.train.Saver().save(session, str(prefix))
        found: Values = session.run(predictions, feed)
    return found


def test_tf1_served_answers_equal_the_sessions_predictions(tmp_path: Path) -> None:
    predicted = train(tmp_path / "ckpt" / "model.ckpt")
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE.replace("FOLDER", str(Path(__file__).parent)))
    page = export(recipe).page
    rules = {name: each.ids.kind for name, each in page.features.items() if isinstance(each, EmbeddedFeature)}
    assert rules == {
        **dict.fromkeys(("ad", "liked", "seen", "shop", "tags", "user"), "identity"),
        **dict.fromkeys(("city@city_embedding", "zone@zone", "zone@zone_embedding"), "hash"),
        **dict.fromkeys(("years*city", "years*city@city_X_years_bucketized"), "crossed"),
        "kind": "vocabulary",
        "years@years_bucketized_embedding": "buckets",
    }
    assert page.tables["shops"].source.layout == "mod"
    assert "liked_seen_shared_embedding" in page.tables
    assert {form.kind for form in page.towers["ranking"].forms} == {"saved_model", "litert"}
    features = {name: values.tolist() for name, values in candidates().items()}
    with serving(tmp_path / "bundles") as clients:
        for client in clients:
            assert_ranked(client, predicted, features, CONTEXT)
