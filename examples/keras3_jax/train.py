"""Trains a two-tower model of Keras 3 in JAX, and writes the files of an export.

python -m examples.keras3_jax.train [--out DIR]
"""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "jax"

import shutil
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from examples import trained, two_towers
from examples.columns import Columns
from examples.keras3_jax.model import Sizes, TwoTower
from examples.two_towers import BATCH, EPOCHS, HISTORY, WIDTHS, arrays, inputs, with_history
from examples.watching import Watching


def train(out: Path, scale: trained.Scale = "small") -> None:
    """Trains, and writes the folder `out`."""
    keras.utils.set_random_seed(3)
    watching = Watching(scale, HISTORY)
    dim, hidden = WIDTHS[scale]
    sizes = Sizes(watching.users, watching.movies, dim, hidden)
    model = TwoTower(sizes)

    checkpoint = (out / "orbax").resolve()
    shutil.rmtree(checkpoint, ignore_errors=True)
    # With its configuration, a model of one's own class needs a method `get_config`.
    saving = keras.callbacks.OrbaxCheckpoint(
        str(checkpoint), save_on_background=False, save_weights_only=True
    )
    columns = arrays(inputs(watching, with_history(watching, watching.trained)))
    model.compile(keras.optimizers.Adam(0.003), own_movie)
    model.fit(
        columns,
        np.zeros(len(columns["user_id"]), np.float32),
        batch_size=BATCH[scale],
        epochs=EPOCHS[scale],
        verbose=2,
        callbacks=[saving],
    )

    def call(name: str, columns: Columns) -> np.ndarray:
        return np.asarray(getattr(model, name)(arrays(columns)))

    two_towers.write(out, Path(__file__).parent, sizes, watching, call, scale)


def own_movie(_labels: Any, scores: Any) -> Any:
    """Returns the loss that separates each viewer's movie from all others of the batch."""
    labels = ops.arange(ops.shape(scores)[0])
    return keras.losses.sparse_categorical_crossentropy(labels, scores, from_logits=True)


if __name__ == "__main__":
    trained.command_line("keras3_jax", train)
