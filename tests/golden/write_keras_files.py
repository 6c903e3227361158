"""Files that Keras saves: weights in HDF5, archives, whole models; of tf-keras and of Keras 3."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.golden.expectations import DIM, finish

ROWS = {"movies": 101, "genres": 7}


def trained(kit: Any, dtype: str = "float32") -> Any:
    """A functional model of tf-keras or Keras 3, trained for one step, so that its optimizer has state."""
    inputs = [kit.Input((1,), dtype="int64") for _ in ROWS]
    layers = [kit.layers.Embedding(rows, DIM, name=name, dtype=dtype) for name, rows in ROWS.items()]
    flat = [kit.layers.Flatten(dtype="float32")(layer(ids)) for layer, ids in zip(layers, inputs, strict=True)]
    model = kit.Model(inputs, kit.layers.Dense(1)(kit.layers.Concatenate()(flat)))
    model.compile("adam", "mse")
    model.fit([np.ones((2, 1), np.int64)] * len(ROWS), np.ones((2, 1)), verbose=0)
    return model


def keras_file(directory: Path, kit: Any, name: str, *, named: bool = True, dtype: str = "float32") -> None:
    """Weights, an archive or a whole model, as the name of the file says."""
    model = trained(kit, dtype)
    if name.endswith(".weights.json"):
        model.save_weights(str(directory / name), max_shard_size=4e-6)
    elif ".weights." in name:
        model.save_weights(str(directory / name))
    else:
        model.save(str(directory / name))
    values = {layer: np.asarray(model.get_layer(layer).embeddings) for layer in ROWS}
    if not named:  # the layers are told by their class and number alone
        values = {"embedding": values["movies"], "embedding_1": values["genres"]}
    finish(directory, values, [], step=1, origin="Keras Embedding", dtype=dtype, candidates=1)


def keras_attributes(directory: Path) -> None:
    """A subclassed model of Keras 3, whose Embedding is an attribute with a name of its own: it must be named."""

    class Model(keras.Model):  # type: ignore[misc]  # Keras has no types
        def __init__(self) -> None:
            super().__init__()
            self.embed = keras.layers.Embedding(101, DIM, name="movies")

        def call(self, ids: Any) -> Any:
            return self.embed(ids)

    model = Model()
    model(np.ones((2, 1), np.int64))
    model.save_weights(str(directory / "model.weights.h5"))
    values = {"movies": np.asarray(model.embed.embeddings)}
    finish(directory, values, [], step=None, origin="named", named={"movies": "embed/vars/0"}, candidates=0)


KERAS_FILE_CASES: dict[str, Callable[[Path], None]] = {
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
