"""A model of linear towers, which tests compute in float64 with NumPy.

Only `compile_towers` needs TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

EDITIONS = (1, 2, 3)
"""Each edition has other weights, so that a mix of two versions shows in every number."""

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
PARTS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "context": ("context", ("user", "liked", "recent"), ()),
    "trunk": ("candidate", ("movie", "mood", "genres", "hour", "year"), ("context",)),
    "score": ("candidate", (), ("trunk",)),
    "watch": ("candidate", (), ("trunk",)),
    "rating": ("candidate", (), ("trunk",)),
}
"""The parts of the ranking tower by name: `context` or `candidate`, for each of which the part runs
once; the features that the part reads as one packed input; and the parts whose outputs it reads."""
ROLES = {"query": "query", "candidate": "candidate", "ranking": "ranking"}
DIM = 8

Array = NDArray[Any]


def width(tower: str) -> int:
    return sum(int(np.prod(shape, dtype=np.int64)) for shape in INPUTS[tower].values())


def weights(tower: str, edition: int) -> tuple[Array, Array]:
    """Returns the matrix, [width, outputs] float32, and the bias, [outputs] float32."""
    random = np.random.default_rng([sorted(INPUTS).index(tower), edition])
    outputs = len(OUTPUTS[tower]) if tower == "ranking" else DIM
    matrix = random.normal(0, 0.5, (width(tower), outputs)).astype(np.float32)
    return matrix, np.full(outputs, 0.25 * edition, np.float32)


def formula(tower: str, edition: int, inputs: dict[str, Array]) -> dict[str, Array]:
    """Returns the outputs of a tower in float64."""
    matrix, bias = weights(tower, edition)
    parts = [
        np.asarray(inputs[name], np.float64).reshape(len(inputs[name]), -1)
        for name in INPUTS[tower]
    ]
    flat = np.concatenate(parts, axis=1) @ matrix.astype(np.float64) + bias
    if tower != "ranking":
        return {"vector": flat}
    return {"score": flat[:, 0], "watch": 1 / (1 + np.exp(-flat[:, 1])), "rating": flat[:, 2]}


def part_inputs(part: str) -> dict[str, tuple[int, ...]]:
    """Returns the shape of one example of each input: `packed`, and the outputs of other parts."""
    _, features, parts = PARTS[part]
    size = sum(int(np.prod(INPUTS["ranking"][name], dtype=np.int64)) for name in features)
    shapes: dict[str, tuple[int, ...]] = {"packed": (size,)} if features else {}
    return shapes | {name: (len(OUTPUTS["ranking"]),) for name in parts}


def compile_towers(directory: Path) -> None:
    """Writes `saved_model/` and `compiled-f32.tflite` of each tower and part:
    `<edition>/<tower>[/parts/<part>]/`.
    """
    for edition in EDITIONS:
        for tower, shapes in INPUTS.items():
            _compile(directory / str(edition) / tower, _call(tower, edition), shapes)
        for part in PARTS:
            _compile(
                directory / str(edition) / "ranking/parts" / part,
                _part_call(part, edition),
                part_inputs(part),
            )


def _compile(
    directory: Path, call: Callable[..., dict[str, Any]], shapes: dict[str, tuple[int, ...]]
) -> None:
    import tensorflow as tf

    module = tf.Module()
    module.call = tf.function(call)
    specs = {
        name: tf.TensorSpec([None, *shape], tf.float32, name) for name, shape in shapes.items()
    }
    signature = module.call.get_concrete_function(**specs)
    tf.saved_model.save(
        module, str(directory / "saved_model"), signatures={"serving_default": signature}
    )
    converter = tf.lite.TFLiteConverter.from_saved_model(
        str(directory / "saved_model"), signature_keys=["serving_default"]
    )
    (directory / "compiled-f32.tflite").write_bytes(converter.convert())


def _part_call(part: str, edition: int) -> Callable[..., dict[str, Any]]:
    import tensorflow as tf

    matrix, bias = weights("ranking", edition)
    sizes = [int(np.prod(shape, dtype=np.int64)) for shape in INPUTS["ranking"].values()]
    rows = dict(zip(INPUTS["ranking"], np.split(matrix, np.cumsum(sizes)[:-1]), strict=True))

    def call(**inputs: Any) -> dict[str, Any]:
        if part not in {"context", "trunk"}:
            number = tf.gather(inputs["trunk"], OUTPUTS["ranking"].index(part), axis=1)
            return {part: tf.sigmoid(number) if part == "watch" else number}
        packed_rows = np.concatenate([rows[name] for name in PARTS[part][1]])
        product = tf.matmul(inputs["packed"], tf.constant(packed_rows))
        if part == "context":
            return {part: product}
        return {part: product + inputs["context"] + tf.constant(bias)}

    return call


def _call(tower: str, edition: int) -> Callable[..., dict[str, Any]]:
    import tensorflow as tf

    matrix, bias = (tf.constant(values) for values in weights(tower, edition))

    def call(**inputs: Any) -> dict[str, Any]:
        flat_parts = [
            tf.reshape(inputs[name], [-1, int(np.prod(shape, dtype=np.int64))])
            for name, shape in INPUTS[tower].items()
        ]
        flat = tf.matmul(tf.concat(flat_parts, axis=1), matrix) + bias
        if tower != "ranking":
            return {"vector": flat}
        return {"score": flat[:, 0], "watch": tf.sigmoid(flat[:, 1]), "rating": flat[:, 2]}

    return call
