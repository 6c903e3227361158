"""A ranker whose inputs and tables are called as the exporter calls what it makes: readings of an
input, crosses, packed inputs, and what one part of a tower passes to the next.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.graphs.loading import load_tensorflow
from export.model_code.factories import load_factory
from tests.units.export.movies_job import export
from tests.units.service.changes.making import responds
from tests.units.service.running import RunningService

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't:DeprecationWarning"  # Keras
)
tf = load_tensorflow()

MODEL = """
import keras
import tensorflow as tf
from keras import layers

FLOATS = ["items@values", "context_0", "packed_float32", "trunk_0", "items@indicator"]

class Ranker(keras.Model):
    def __init__(self):
        super().__init__()
        self.values = layers.Embedding(30, 8)
        self.cross = layers.HashedCrossing(16)
        self.crosses = layers.Embedding(16, 8)
        self.lengths = layers.Embedding(16, 8)
        self.first = layers.Dense(256, "relu")
        self.second = layers.Dense(64)
        self.trunk = layers.Dense(64, "relu")
        self.click = layers.Dense(1)
        self.watch = layers.Dense(1)

    def call(self, x):
        mask = tf.cast(x["items"] > 0, tf.float32)[..., None]
        items = tf.reduce_sum(self.values(x["items"]) * mask, 1)
        numbers = [x[name][:, None] for name in ("items@values", "context_0", "packed_float32")]
        context = self.second(self.first(tf.concat([items, *numbers], 1)))
        crossed = self.crosses(self.cross((x["a"], x["b"])))
        product = self.lengths(x["a*b"]) * tf.cast(x["a*b"], tf.float32)[:, None]
        numbers = [x[name][:, None] for name in ("trunk_0", "items@indicator")]
        trunk = self.trunk(tf.concat([context, crossed, product, *numbers], 1))
        return {"click": self.click(trunk)[:, 0], "trunk_1": self.watch(trunk)[:, 0]}

def build():
    model = Ranker()
    ids = {name: tf.constant([1]) for name in ("a", "b", "a*b")}
    floats = {name: tf.constant([1.0]) for name in FLOATS}
    model({"items": tf.constant([[1, 2, 0]]), **ids, **floats})
    return model
"""
RECIPE = """
model = "movies"
checkpoint.path = "ranker.weights.h5"
code = { factory = "ranker.py:build", table_threshold = 0 }
output.root = "bundles"
[inputs]
items = { dtype = "int32", shape = [3] }
"items@values" = { dtype = "float32" }
"items@indicator" = { dtype = "float32" }
context_0 = { dtype = "float32" }
packed_float32 = { dtype = "float32" }
trunk_0 = { dtype = "float32" }
a = { dtype = "int32" }
b = { dtype = "int32" }
"a*b" = { dtype = "int32" }
[features]
a.role = "candidate"
b.role = "candidate"
"a*b".role = "candidate"
trunk_0.role = "candidate"
"items@indicator".role = "candidate"
[towers.score]
role = "ranking"
result = "click"
outputs = { click = "click", trunk_1 = "trunk_1" }
"""
COUNT = 20


def test_names_of_a_model_never_meet_those_that_are_made(tmp_path: Path) -> None:
    (tmp_path / "ranker.py").write_text(MODEL)
    model = load_factory("ranker.py:build", tmp_path)()
    model.save_weights(tmp_path / "ranker.weights.h5")
    (tmp_path / "recipe.toml").write_text(RECIPE)
    published = export(tmp_path / "recipe.toml")
    assert published.manifest.towers["score"].parts, "the tower is divided"
    assert published.manifest.tables.keys() == {"values", "crosses", "lengths"}

    numbers = np.arange(COUNT)
    context = {
        "items": [5, 0, 29],
        "items@values": -0.5,
        "context_0": 2.0,
        "packed_float32": 0.25,
    }
    candidates: dict[str, Any] = {
        "a": numbers,
        "b": 3 * numbers,
        "a*b": numbers % 16,
        "trunk_0": (numbers / 4).astype(np.float32),
        "items@indicator": (1 - numbers / 8).astype(np.float32),
    }
    repeated = {name: tf.constant([value] * COUNT) for name, value in context.items()}
    expected = model({**repeated, **{name: tf.constant(v) for name, v in candidates.items()}})
    service = RunningService(tmp_path / "bundles")
    try:
        lists = {name: values.tolist() for name, values in candidates.items()}
        heads = responds(
            service,
            "rank",
            context=context,
            candidate_features=lists,
            heads=["click", "trunk_1"],
        )["heads"]
    finally:
        service.close()
    for name in ("click", "trunk_1"):
        np.testing.assert_allclose(heads[name], np.asarray(expected[name]), atol=1e-5)


TABLES = """
import tensorflow as tf

E = tf.tpu.experimental.embedding

class Slots(tf.Module):
    def __init__(self):
        super().__init__()
        self.config = {
            name: E.FeatureConfig(E.TableConfig(rows, 3, name=name))
            for name, rows in (("a/b", 7), ("a_b", 5), ("a b", 6))
        }
        self.slots = E.TPUEmbeddingForServing(self.config, None)
        self.slots.build()

    def __call__(self, inputs):
        ids = {name: inputs[f"{number}"] for number, name in enumerate(self.config)}
        found = E.serving_embedding_lookup(
            ids, None, self.slots.embedding_tables, self.config
        )
        return {"vector": tf.concat([found[name] for name in self.config], axis=1)}

def build():
    return Slots()
"""


def test_tables_whose_names_are_one_in_a_bundle_keep_their_rows(tmp_path: Path) -> None:
    (tmp_path / "slots.py").write_text(TABLES)
    model = load_factory("slots.py:build", tmp_path)()
    tf.train.Checkpoint(model=model).write(str(tmp_path / "slots"))
    inputs = "".join(f'inputs.{number} = {{ dtype = "int32" }}\n' for number in range(3))
    (tmp_path / "recipe.toml").write_text(
        'model = "movies"\ncheckpoint = { path = "slots", object_path = "model" }\n'
        'code = { factory = "slots.py:build", table_threshold = 0 }\noutput.root = "bundles"\n'
        f'{inputs}towers.query = {{ role = "query" }}\n'
    )
    published = export(tmp_path / "recipe.toml")
    rows = {name: table.rows for name, table in published.manifest.tables.items()}
    assert rows == {"a_b": 5, "a_b_2": 6, "a_b_3": 7}
