"""Writes small towers as flatbuffers and SavedModels, with their weights for the reference.

In a process of its own, so that the tests of packages without TensorFlow stay in a process without
TensorFlow.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.models.tensorflow_process import with_tensorflow


def write_tower_files(directory: Path) -> None:
    """Writes them into a directory."""
    with_tensorflow(_write, directory)


def _write(directory: Path) -> None:
    import tensorflow as tf

    random = np.random.default_rng(7)
    shapes = {
        "query_in": (96, 128),
        "query_out": (128, 64),
        "rank_in": (40, 256),
        "rank_out": (256, 1),
    }
    weights = {
        name: random.normal(0, 0.2, shape).astype(np.float32) for name, shape in shapes.items()
    }
    weights["candidate"] = random.normal(0, 0.5, (9, 8)).astype(np.float32)
    save: Any = np.savez
    save(directory / "weights.npz", **weights)
    module = tf.Module()
    module.kept = variables = {name: tf.Variable(values) for name, values in weights.items()}

    def query(user: Any, history: Any) -> Any:
        hidden = tf.nn.relu(tf.concat([user, history], 1) @ variables["query_in"])
        return {
            "vector": hidden @ variables["query_out"],
            "norm": tf.reduce_sum(tf.square(user), 1),
        }

    def ranking(x: Any) -> Any:
        return {
            "score": tf.sigmoid(tf.nn.relu(x @ variables["rank_in"]) @ variables["rank_out"])[:, 0]
        }

    def candidate(movie: Any, year: Any) -> Any:
        return {
            "vector": tf.concat([movie, tf.math.log(year)[:, None]], 1) @ variables["candidate"]
        }

    def typed(watched: Any, hour: Any) -> Any:
        return {"sum": tf.reduce_sum(watched, [1, 2]) + tf.cast(hour, tf.float32)}

    inputs: dict[Any, dict[str, list[int | None]]] = {
        query: {"user": [None, 32], "history": [None, 64]},
        ranking: {"x": [None, 40]},
        candidate: {"movie": [None, 8], "year": [None]},
        typed: {"watched": [None, 5, 4], "hour": [None]},
    }
    for function, shaped in inputs.items():
        name = function.__name__
        specs = [
            tf.TensorSpec(shape, tf.int64 if key == "hour" else tf.float32, name=key)
            for key, shape in shaped.items()
        ]
        saved = directory / name / "saved_model"
        tf.saved_model.save(
            module,
            str(saved),
            signatures={"serving_default": tf.function(function, input_signature=specs)},
        )
        converter = tf.lite.TFLiteConverter.from_saved_model(str(saved))
        (directory / name / "compiled-f32.tflite").write_bytes(converter.convert())
        if name in ("query", "ranking"):
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
            (directory / name / "compiled-int8.tflite").write_bytes(converter.convert())
