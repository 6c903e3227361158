"""A ranker trained by a program of TF1 and saved by its Saver: what is served equals what its
session predicts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray

from bundle.format.manifest import EmbeddedFeature, GraphIds
from tests.differential.served_rankers import RankerService, assert_ranked, write_recipe
from tests.models import tf1, tf1_graph
from tests.units.export.movies_job import export

# TF1's linear_model does so.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:`layer.add_variable` is deprecated"),
]

v1 = tf.compat.v1
N = 12
INPUTS: dict[str, dict[str, Any]] = {
    "user": {"dtype": "int64"},
    "city": {"dtype": "string"},
    "kind": {"dtype": "string", "shape": [3]},
    "tags": {"dtype": "int64", "kind": "sparse"},
    "tags_weights": {"dtype": "float32", "kind": "sparse", "weights_for": "tags"},
    "seen": {"dtype": "int64", "shape": [5]},
    "liked": {"dtype": "int32", "shape": [1]},
    "years": {"dtype": "float32", "shape": [1]},
    "ad": {"dtype": "int64"},
    "zone": {"dtype": "int64", "shape": [2]},
    "shop": {"dtype": "int64"},
}
CONTEXT = {
    "user": 250,  # beyond the table: its column's default
    "city": "Zürich",
    "kind": ["b", "", "zebra"],
    "tags": {"ids": [3, 39, 3], "weights": [0.5, 2.0, 0.0]},
    "seen": [7, -1, 49, 7, -1],
    "liked": [11],
    "years": [40.0],
}


def candidates() -> dict[str, NDArray[Any]]:
    random = np.random.default_rng(3)
    zone = random.integers(0, 1 << 40, (N, 2))
    zone[::3, 1] = -1
    return {"ad": random.integers(0, 30, N), "zone": zone, "shop": random.integers(0, 31, N)}


def fed() -> dict[str, Any]:
    """What the program feeds for the context and all candidates."""
    places = [(example, place) for example in range(N) for place in range(3)]
    bag: Any = CONTEXT["tags"]
    sparse = {
        name: v1.SparseTensorValue(places, np.tile(bag[key], N), (N, 3))
        for name, key in (("tags", "ids"), ("tags_weights", "weights"))
    }
    return {name: np.array([value] * N) for name, value in CONTEXT.items()} | candidates() | sparse


def train(prefix: Path) -> dict[str, NDArray[Any]]:
    """Trains for a step, saves as programs of TF1 do, and returns the predictions for
    what is fed.
    """
    with tf.Graph().as_default(), v1.Session() as session:
        inputs = {
            name: v1.sparse_placeholder(entry["dtype"])
            if "kind" in entry
            else v1.placeholder(entry["dtype"], [None, *entry.get("shape", [])])
            for name, entry in INPUTS.items()
        }
        predictions = tf1.build()(inputs)
        loss = tf.reduce_mean(predictions["click"] - predictions["buy"])
        step = v1.train.AdagradOptimizer(0.5).minimize(loss, v1.train.get_global_step())
        session.run([v1.global_variables_initializer(), v1.tables_initializer()])
        feed = {inputs[name]: value for name, value in fed().items()}
        session.run(step, feed)
        v1.train.Saver().save(session, str(prefix))
        actual: dict[str, NDArray[Any]] = session.run(predictions, feed)
    return actual


def test_tf1_ranker_served_gives_the_predictions_of_the_session(
    tmp_path: Path, ranker_service: RankerService
) -> None:
    predicted = train(tmp_path / "ckpt" / "model.ckpt")
    factory = f"{tf1.__file__}:build"
    recipe = write_recipe(tmp_path, factory, INPUTS, ("click", "buy"), (*CONTEXT,), "tf1")
    page = export(recipe).manifest
    last_operations = {
        name: feature.ids.nodes[-1].op
        for name, feature in page.features.items()
        if isinstance(feature, EmbeddedFeature) and isinstance(feature.ids, GraphIds)
    }
    assert last_operations == {
        **dict.fromkeys(("ad", "liked", "seen", "shop", "tags", "user"), "Input"),
        **dict.fromkeys(("years*city", "years*city@city_X_years_bucketized"), "SparseCross"),
        **dict.fromkeys(
            ("city@city_embedding", "zone@zone", "zone@zone_embedding"), "StringToHashBucketFast"
        ),
        "kind": "SelectV2",
        "years@years_bucketized_embedding": "Cast",
    }
    assert page.tables["shops"].source.layout == "mod"
    assert "liked_seen_shared_embedding" in page.tables
    assert {form.kind for form in page.towers["ranking"].forms} == {"saved_model", "litert"}
    features = {name: values.tolist() for name, values in candidates().items()}
    ranker_service.publish(tmp_path / "bundles" / "tf1")
    for client in ranker_service.clients:
        assert_ranked(client, predicted, features, CONTEXT, "tf1")


def test_class_with_a_graph_of_its_own_served_gives_the_predictions_of_its_session(
    tmp_path: Path, ranker_service: RankerService
) -> None:
    model = tf1_graph.Ranker()
    random = np.random.default_rng(1)
    iterator = model.iterator
    seen = random.integers(0, 40, 3)
    ads = random.integers(0, 40, N)
    feed = {
        iterator.user: np.full(N, 89),
        iterator.seen: np.tile(seen, (N, 1)),
        iterator.ad: ads,
        iterator.label: np.ones(N),
        model.rate: 0.1,
    }
    model.session.run(model.step, feed | {model.keep: [0.5], model.is_training: True})
    (tmp_path / "ckpt").mkdir()
    with model.graph.as_default():
        model.saver.save(model.session, str(tmp_path / "ckpt" / "model"))
    predicted = model.session.run(model.scores, feed | {model.keep: [1.0]})

    factory = f"{tf1_graph.__file__}:Ranker"
    inputs: dict[str, dict[str, Any]] = {
        "user": {"dtype": "int32"},
        "seen": {"dtype": "int32", "shape": [3]},
        "ad": {"dtype": "int32"},
    }
    recipe = write_recipe(tmp_path, factory, inputs, ("click", "buy"), ("user", "seen"), "own")
    call = (
        'call = "scores", arguments = { "iterator.user" = "user", "iterator.seen" = "seen", '
        '"iterator.ad" = "ad", keep = [1.0] }'
    )
    text = recipe.read_text().replace('role = "ranking"', f'role = "ranking", {call}')
    recipe.write_text(text.replace('Ranker"', 'Ranker", table_threshold = 30'))
    assert list(export(recipe).manifest.tables) == ["ads", "users"]
    ranker_service.publish(tmp_path / "bundles" / "own")
    for client in ranker_service.clients:
        context = {"user": 89, "seen": seen.tolist()}
        assert_ranked(client, predicted, {"ad": ads.tolist()}, context, "own")
