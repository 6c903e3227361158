"""A two-tower model with very many items, its checkpoint and its corpus, for the exporter's memory.

`python -m tests.bench.exporter.big_two_tower DIRECTORY ITEMS` writes what `rowcast-export run DIRECTORY/recipe.toml`
reads. Items lie in clusters, as those of real models do; a corpus record holds many of them, gzipped.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

os.environ |= {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}

DIM = 64
CLUSTERS, SPREAD = 1000, 0.5
RECORD = 4096
"""Items of a record."""
PASSED = 1 << 20
"""Items that are made at a time."""

_RECIPE = """
model = "items"
checkpoint = { path = "checkpoint", object_path = "model" }
code = { factory = "model.py:build" }
output = { root = "bundles" }
towers.query = { role = "query", outputs = { query = "query" } }
towers.candidate = { role = "candidate", outputs = { candidate = "candidate" } }

[inputs]
history = { dtype = "int64", kind = "ragged" }
item = { dtype = "int64" }
year = { dtype = "float32" }

[candidates.items]
file = "items.tfrecord.gz"
prebatched = true
id = "item"
features = { item = "item", year = "year" }
attributes = ["title", "year"]

[indexes.items]
corpus = "items"
query_tower = "query"
candidate_tower = "candidate"
"""


def build(items: int) -> Any:
    """Returns the model; its table is made when it is first called."""
    import tf_keras

    class Items(tf_keras.Model):  # type: ignore[misc]  # Keras has no types
        def __init__(self) -> None:
            super().__init__()
            self.items = tf_keras.layers.Embedding(items, DIM)
            self.asking = tf_keras.layers.Dense(DIM, use_bias=False, kernel_initializer="identity")
            self.asked = tf_keras.layers.Dense(DIM, kernel_initializer="identity")

        def call(self, inputs: Any) -> dict[str, Any]:
            import tensorflow as tf

            age = tf.reshape((inputs["year"] - 2000.0) / 100.0, [-1, 1])
            return {
                "query": self.asking(tf.reduce_mean(self.items(inputs["history"]), axis=1)),
                "candidate": self.asked(self.items(inputs["item"])) * (1.0 + 0.1 * age),
            }

    return Items()


def write(directory: Path, items: int) -> None:
    """Writes checkpoint, corpus, model code and recipe."""
    import tensorflow as tf

    directory.mkdir()
    model = build(items)
    item = tf.constant([0], tf.int64)
    model({"history": tf.ragged.constant([[0]], dtype=tf.int64), "item": item, "year": tf.constant([2000.0])})
    random = np.random.default_rng(0)
    centres = random.standard_normal((CLUSTERS, DIM), np.float32)
    table = model.items.embeddings
    for first in range(0, items, PASSED):
        count = min(PASSED, items - first)
        rows = centres[random.integers(0, CLUSTERS, count)]
        rows += SPREAD * random.standard_normal((count, DIM), np.float32)
        table.scatter_update(tf.IndexedSlices(rows, tf.range(first, first + count)))
    tf.train.Checkpoint(model=model).write(str(directory / "checkpoint" / "ckpt"))
    with tf.io.TFRecordWriter(str(directory / "items.tfrecord.gz"), "GZIP") as file:
        for first in range(0, items, RECORD):
            file.write(_record(tf, np.arange(first, min(items, first + RECORD))))
    (directory / "model.py").write_text(
        f"from tests.bench.exporter import big_two_tower\n\n\ndef build():\n    return big_two_tower.build({items})\n"
    )
    (directory / "recipe.toml").write_text(_RECIPE)


def _record(tf: Any, items: np.ndarray[Any, Any]) -> bytes:
    columns = {
        "item": tf.train.Feature(int64_list=tf.train.Int64List(value=items)),
        "year": tf.train.Feature(float_list=tf.train.FloatList(value=1950.0 + items % 70)),
        "title": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"item %d" % item for item in items])),
    }
    written: bytes = tf.train.Example(features=tf.train.Features(feature=columns)).SerializeToString()
    return written


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]))
