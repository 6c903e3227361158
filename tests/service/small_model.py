"""A model small enough to be told in numpy: its towers, their weights by edition, and their formulas in float64.

`python -m tests.service.small_model DIRECTORY` (a process of its own: it imports TensorFlow) compiles the towers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

EDITIONS = (1, 2, 3)
"""Weights differ by edition, so that a mix of two versions shows in every number."""

INPUTS: dict[str, dict[str, tuple[int, ...]]] = {
    "query": {"user": (8,), "history": (8,), "city": (4,), "hour": ()},
    "candidate": {"movie": (8,), "genres": (4,), "year": ()},
    "ranking": {
        "user": (8,),
        "liked": (8,),
        "recent": (3, 8),
        "hour": (),
        "mood": (2,),
        "movie": (8,),
        "genres": (4,),
        "year": (),
    },
}
OUTPUTS: dict[str, tuple[str, ...]] = {
    "query": ("vector",),
    "candidate": ("vector",),
    "ranking": ("score", "watch", "rating"),
}
ROLES = {"query": "query", "candidate": "candidate", "ranking": "ranking"}
DIM = 8

Array = NDArray[Any]


def width(tower: str) -> int:
    return sum(int(np.prod(shape, dtype=np.int64)) for shape in INPUTS[tower].values())


def weights(tower: str, edition: int) -> tuple[Array, Array]:
    """[width, outputs] float32 and [outputs] float32."""
    random = np.random.default_rng([sorted(INPUTS).index(tower), edition])
    outputs = len(OUTPUTS[tower]) if tower == "ranking" else DIM
    matrix = random.normal(0, 0.5, (width(tower), outputs)).astype(np.float32)
    return matrix, np.full(outputs, 0.25 * edition, np.float32)


def formula(tower: str, edition: int, inputs: dict[str, Array]) -> dict[str, Array]:
    """What a tower computes, in float64."""
    matrix, bias = weights(tower, edition)
    parts = [np.asarray(inputs[name], np.float64).reshape(len(inputs[name]), -1) for name in INPUTS[tower]]
    flat = np.concatenate(parts, axis=1) @ matrix.astype(np.float64) + bias
    if tower != "ranking":
        return {"vector": flat}
    return {"score": flat[:, 0], "watch": 1 / (1 + np.exp(-flat[:, 1])), "rating": flat[:, 2]}


def compile_towers(directory: Path) -> None:
    """Writes `<edition>/<tower>/saved_model/` and `<edition>/<tower>/compiled-f32.tflite`."""
    import tensorflow as tf

    for edition in EDITIONS:
        for tower, shapes in INPUTS.items():
            module = tf.Module()
            module.call = tf.function(_call(tower, edition))
            taken = {name: tf.TensorSpec([None, *shape], tf.float32, name) for name, shape in shapes.items()}
            saved = directory / str(edition) / tower / "saved_model"
            signature = module.call.get_concrete_function(**taken)
            tf.saved_model.save(module, str(saved), signatures={"serving_default": signature})
            converter = tf.lite.TFLiteConverter.from_saved_model(str(saved), signature_keys=["serving_default"])
            (saved.parent / "compiled-f32.tflite").write_bytes(converter.convert())


def _call(tower: str, edition: int) -> Callable[..., dict[str, Any]]:
    import tensorflow as tf

    matrix, bias = (tf.constant(each) for each in weights(tower, edition))

    def call(**inputs: Any) -> dict[str, Any]:
        flat_parts = [
            tf.reshape(inputs[name], [-1, int(np.prod(shape, dtype=np.int64))]) for name, shape in INPUTS[tower].items()
        ]
        flat = tf.matmul(tf.concat(flat_parts, axis=1), matrix) + bias
        if tower != "ranking":
            return {"vector": flat}
        return {"score": flat[:, 0], "watch": tf.sigmoid(flat[:, 1]), "rating": flat[:, 2]}

    return call


if __name__ == "__main__":
    compile_towers(Path(sys.argv[1]))
