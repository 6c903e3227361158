"""Checkpoints, SavedModels and files of weights, archives and whole models, of tf-keras and of
Keras 3.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.differential.expectations import DIM, finish, random_values

ROWS = {"movies": 101, "genres": 7}


def trained(kit: Any, dtype: str = "float32") -> Any:
    """A functional model of tf-keras or Keras 3, trained for one step, so that its optimizer has
    state.
    """
    inputs = [kit.Input((1,), dtype="int64") for _ in ROWS]
    layers = [
        kit.layers.Embedding(rows, DIM, name=name, dtype=dtype) for name, rows in ROWS.items()
    ]
    flat = [
        kit.layers.Flatten(dtype="float32")(layer(ids))
        for layer, ids in zip(layers, inputs, strict=True)
    ]
    model = kit.Model(inputs, kit.layers.Dense(1)(kit.layers.Concatenate()(flat)))
    model.compile("adam", "mse", run_eagerly=True)  # a step is not worth a graph
    model.train_on_batch([np.ones((2, 1), np.int64)] * len(ROWS), np.ones((2, 1)))
    return model


def keras_checkpoint(
    directory: Path, kit: Any, how: str = "checkpoint", dtype: str = "float32"
) -> None:
    """A checkpoint, weights in TensorFlow's format, or a SavedModel."""
    model = trained(kit, dtype)
    if how == "weights":
        model.save_weights(str(directory / "weights"), save_format="tf")
    elif how == "saved_model":
        model.save(str(directory), save_format="tf")
    else:
        tf.train.Checkpoint(model=model).save(str(directory / "ckpt"))
    values = {name: np.asarray(model.get_layer(name).embeddings) for name in ROWS}
    slots = ["m", "v"] if kit is tf.keras else ["momentums", "velocities"]
    finish(directory, values, slots, step=1, origin="Keras Embedding", dtype=dtype)


def keras_3_export(directory: Path) -> None:
    """A functional model of Keras 3, exported, which stores every variable twice."""
    ids = keras.Input((1,), dtype="int64")
    rows = keras.layers.Embedding(101, DIM, name="movies")(ids)
    model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(rows)))
    model.export(str(directory), verbose=False)
    values = {"movies": model.get_layer("movies").get_weights()[0]}
    finish(directory, values, [], step=None, origin="Keras Embedding", duplicates=1)


def dense_features(directory: Path) -> None:
    """A feature column in a tf-keras layer."""
    column = tf.feature_column.categorical_column_with_identity("user", 101)
    inputs = {"user": tf.keras.Input((1,), dtype=tf.int64, name="user")}
    layer = tf.keras.layers.DenseFeatures([tf.feature_column.embedding_column(column, DIM)])
    model = tf.keras.Model(inputs, layer(inputs))
    tf.train.Checkpoint(model=model).save(str(directory / "ckpt"))
    finish(
        directory,
        {"user_embedding": layer.weights[0].numpy()},
        [],
        step=None,
        origin="feature column",
    )


_TF_KERAS: dict[str, tuple[Callable[[Any], Any], list[str]]] = {
    "sgd": (lambda kit: kit.SGD(0.1, momentum=0.9), ["m"]),
    "rmsprop": (
        lambda kit: kit.RMSprop(momentum=0.9, centered=True),
        ["average_gradient", "momentum", "velocity"],
    ),
    "adam": (lambda kit: kit.Adam(amsgrad=True), ["m", "v", "vhat"]),
    "adamw": (lambda kit: kit.AdamW(), ["m", "v"]),
    "adadelta": (lambda kit: kit.Adadelta(), ["accumulated_delta_var", "accumulated_grad"]),
    "adagrad": (lambda kit: kit.Adagrad(), ["accumulator"]),
    "adamax": (lambda kit: kit.Adamax(), ["m", "u"]),
    "adafactor": (lambda kit: kit.Adafactor(), ["v"]),
    "nadam": (lambda kit: kit.Nadam(), ["m", "v"]),
    "ftrl": (lambda kit: kit.Ftrl(), ["accumulator", "linear"]),
    "lion": (lambda kit: kit.Lion(), ["m"]),
    "averaged": (lambda kit: kit.Adam(use_ema=True), ["average", "m", "v"]),
    "legacy_sgd": (lambda kit: kit.legacy.SGD(0.1, momentum=0.9), ["momentum"]),
    "legacy_rmsprop": (
        lambda kit: kit.legacy.RMSprop(momentum=0.9, centered=True),
        ["mg", "momentum", "rms"],
    ),
    "legacy_adam": (lambda kit: kit.legacy.Adam(amsgrad=True), ["m", "v", "vhat"]),
    "legacy_adadelta": (lambda kit: kit.legacy.Adadelta(), ["accum_grad", "accum_var"]),
    "legacy_adagrad": (lambda kit: kit.legacy.Adagrad(), ["accumulator"]),
    "legacy_adamax": (lambda kit: kit.legacy.Adamax(), ["m", "v"]),
    "legacy_nadam": (lambda kit: kit.legacy.Nadam(), ["m", "v"]),
    "legacy_ftrl": (lambda kit: kit.legacy.Ftrl(), ["accumulator", "linear"]),
}
_KERAS_3: dict[str, tuple[Callable[[Any], Any], list[str]]] = {
    "sgd": (lambda kit: kit.SGD(0.1, momentum=0.9), ["momentums"]),
    "rmsprop": (
        lambda kit: kit.RMSprop(momentum=0.9, centered=True),
        ["average_gradients", "momentums", "velocities"],
    ),
    "adam": (lambda kit: kit.Adam(amsgrad=True), ["momentums", "velocities", "velocity_hats"]),
    "adamw": (lambda kit: kit.AdamW(), ["momentums", "velocities"]),
    "adadelta": (lambda kit: kit.Adadelta(), ["accumulated_delta_vars", "accumulated_grads"]),
    "adagrad": (lambda kit: kit.Adagrad(), ["accumulators"]),
    "adamax": (lambda kit: kit.Adamax(), ["m", "u"]),
    "adafactor": (lambda kit: kit.Adafactor(), ["velocity"]),
    "nadam": (lambda kit: kit.Nadam(), ["momentums", "velocities"]),
    "ftrl": (lambda kit: kit.Ftrl(), ["accumulators", "linears"]),
    "lion": (lambda kit: kit.Lion(), ["momentums"]),
    "lamb": (lambda kit: kit.Lamb(), ["momentums", "velocities"]),
    "muon": (lambda kit: kit.Muon(), ["momentum", "velocity"]),
    "scaled": (lambda kit: kit.LossScaleOptimizer(kit.Adam()), ["momentums", "velocities"]),
    "averaged": (
        lambda kit: kit.Adam(use_ema=True),
        ["model_variables_moving_average", "momentums", "velocities"],
    ),
}


def keras_optimizers(
    directory: Path, kit: Any, kinds: dict[str, tuple[Callable[[Any], Any], list[str]]]
) -> None:
    """A table and a kernel trained by each optimizer there is, all in one checkpoint."""
    values: dict[str, Any] = {}
    parts: dict[str, Any] = {}
    for number, (name, (make, _)) in enumerate(kinds.items()):
        layer = kit.layers.Embedding(9, DIM, name=name)
        dense = kit.layers.Dense(2)
        optimizer = make(kit.optimizers)
        dense(layer(np.zeros(1, np.int64)))
        layer.embeddings.assign(random_values(9, number))
        trained = [layer.embeddings, dense.kernel]
        zeros = [tf.zeros(each.shape) for each in trained]
        optimizer.apply_gradients(zip(zeros, trained, strict=True))
        values[name] = np.asarray(layer.embeddings)  # weight decay, and what divides by nothing
        parts |= {name: layer, f"dense_{name}": dense, f"optimizer_{name}": optimizer}
    tf.train.Checkpoint(**parts).save(str(directory / "ckpt"))
    slots = {name: own for name, (_, own) in kinds.items()}
    finish(directory, values, slots, step=1, origin="Keras Embedding", candidates=len(kinds))


class Attributes(keras.Model):  # type: ignore[misc]  # Keras has no types
    """A subclassed model of Keras 3, whose variables bear its name, and whose layers are
    attributes.
    """

    def __init__(self, **tables: Any) -> None:
        super().__init__()
        for name, table in tables.items():
            setattr(self, name, table)
        self(np.zeros(1, np.int64))

    def call(self, ids: Any) -> Any:
        return sum(table(ids) for table in self.layers)


def keras_3_attributes(directory: Path) -> None:
    """Two layers of one name, one of which has LoRA."""
    users, movies = (keras.layers.Embedding(rows, DIM, name="layer") for rows in (101, 7))
    model = Attributes(users=users, movies=movies)
    movies.enable_lora(2)
    tf.train.Checkpoint(model=model).save(str(directory / "ckpt"))
    finish(
        directory,
        {"users": np.asarray(users.embeddings)},
        [],
        step=None,
        origin="Keras Embedding",
        rejected=1,
    )


def keras_file(
    directory: Path, kit: Any, name: str, *, named: bool = True, dtype: str = "float32"
) -> None:
    """Weights, an archive or a whole model, as the name of the file says."""
    model = trained(kit, dtype)
    if name.endswith(".weights.json"):
        model.save_weights(str(directory / name), max_shard_size=4e-6)
    elif ".weights." in name:
        model.save_weights(str(directory / name))
    else:
        model.save(str(directory / name))
    values = {layer: np.asarray(model.get_layer(layer).embeddings) for layer in ROWS}
    if not named:  # the layers have no names but their class and number
        values = {"embedding": values["movies"], "embedding_1": values["genres"]}
    finish(directory, values, [], step=1, origin="Keras Embedding", dtype=dtype, candidates=1)


def keras_attributes(directory: Path) -> None:
    """Weights of an attribute whose layer has another name: it must be named."""
    table = keras.layers.Embedding(101, DIM, name="movies")
    Attributes(embed=table).save_weights(str(directory / "model.weights.h5"))
    values = {"movies": np.asarray(table.embeddings)}
    finish(
        directory,
        values,
        [],
        step=None,
        origin="named",
        named={"movies": "embed/vars/0"},
        candidates=0,
    )


KERAS_CASES: dict[str, Callable[[Path], None]] = {
    **{
        f"keras_{dtype}": partial(keras_checkpoint, kit=tf.keras, dtype=dtype)
        for dtype in ("float32", "bfloat16", "float16")
    },
    "keras_dense_features": dense_features,
    "keras_weights": partial(keras_checkpoint, kit=tf.keras, how="weights"),
    "keras_saved_model": partial(keras_checkpoint, kit=tf.keras, how="saved_model"),
    "keras_3": partial(keras_checkpoint, kit=keras),
    "keras_optimizers": lambda to: keras_optimizers(to, tf.keras, _TF_KERAS),
    "keras_3_optimizers": lambda to: keras_optimizers(to, keras, _KERAS_3),
    "keras_3_attributes": keras_3_attributes,
    "keras_3_export": keras_3_export,
    "keras_h5_weights": lambda to: keras_file(to, tf.keras, "model.weights.h5", named=False),
    "keras_h5_archive": lambda to: keras_file(to, tf.keras, "model.keras"),
    "keras_h5_whole": lambda to: keras_file(to, tf.keras, "model.h5"),
    "keras_3_h5_weights": lambda to: keras_file(to, keras, "model.weights.h5"),
    "keras_3_h5_archive": lambda to: keras_file(to, keras, "model.keras"),
    "keras_3_h5_whole": lambda to: keras_file(to, keras, "model.h5"),
    "keras_3_h5_sharded": lambda to: keras_file(to, keras, "model.weights.json"),
    "keras_3_h5_bfloat16": lambda to: keras_file(to, keras, "model.keras", dtype="bfloat16"),
    "keras_3_h5_attributes": keras_attributes,
}
