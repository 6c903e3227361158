"""Rows of quotients, at numbers where TensorFlow finds another row eagerly than in a graph: the
service reads those of the graph, as training did.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from export.graphs.loading import load_tensorflow
from tests.differential.random_models.serving import response_to
from tests.units.export.movies_job import export

MODEL = """
import tensorflow as tf


class Model(tf.Module):
    def __init__(self):
        self.tables = [tf.Variable(tf.zeros([50, 4]), name=f"table_{n}") for n in range(3)]

    @tf.function
    def __call__(self, inputs):
        count = tf.cast(tf.maximum(inputs["count"], 1), tf.float32)
        quotients = [
            tf.math.log(count) / tf.math.log(2.0),
            tf.math.log(count) / tf.math.log(10.0),
            count / 0.1,
        ]
        ids = [tf.cast(tf.minimum(tf.floor(quotient), 49.0), tf.int32) for quotient in quotients]
        rows = [tf.gather(table, row) for table, row in zip(self.tables, ids)]
        return tf.concat(rows, axis=1)


def build():
    return Model()
"""
COUNTS = [0, 1, 2, 3, 4, 5, 9, 99, 8191, 8192, 1 << 27, *(10**power for power in range(1, 19))]


def test_service_reads_the_rows_that_training_read(tmp_path: Path) -> None:
    tf = load_tensorflow()
    (tmp_path / "model.py").write_text(MODEL)
    names: dict[str, Any] = {}
    exec(MODEL, names)
    model = names["build"]()
    for seed, table in enumerate(model.tables):
        table.assign(np.random.default_rng(seed).normal(size=(50, 4)))
    tf.train.Checkpoint(model=model).write(str(tmp_path / "checkpoint" / "model"))
    lines = [json.dumps({"count": count}) for count in COUNTS]
    (tmp_path / "examples.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "recipe.toml").write_text("""
        model = "random"
        checkpoint = { path = "checkpoint/model", object_path = "model" }
        code = { factory = "model.py:build", table_threshold = 0 }
        output.root = "bundles"
        inputs.count = { dtype = "int64" }
        towers.query.role = "query"
        verify.examples = "examples.jsonl"
        """)
    export(tmp_path / "recipe.toml")

    # TensorFlow computes the last examples of a batch by other instructions.
    batch = tf.constant(COUNTS * 64, tf.int64)
    expected = model({"count": batch}).numpy()[: len(COUNTS)]
    requests = [{"features": {"count": count}} for count in COUNTS]
    response = response_to(tmp_path / "bundles", "embed", {"tower": "query", "requests": requests})
    served = [result["vector"] for result in response["results"]]
    np.testing.assert_array_equal(np.array(served, np.float32), expected)
