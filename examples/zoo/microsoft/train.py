"""Trains the SASRec of Microsoft's recommenders, for a few steps."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples.columns import Columns, size, take
from examples.zoo import recorded
from examples.zoo.recorded import Recorded
from examples.zoo.train import Run

BATCH = 64
STEPS = 3
RECORDED = 100
"""The number of requests whose responses are compared."""
LENGTH = 20


def sasrec(run: Run) -> Recorded:
    """Trains the model with its own loss; its `predict` returns the scores of one user."""
    import tensorflow as tf

    model = run.built("sasrec")
    optimizer = tf.keras.optimizers.Adam(0.001)
    histories = _padded(run.viewings.draw(BATCH * STEPS)["history"][:, : LENGTH + 1])
    for watched in np.split(histories, STEPS):
        inputs = {
            "input_seq": watched[:, :-1],
            "positive": watched[:, 1:],
            "negative": np.roll(watched[:, 1:], 1, axis=0),
        }
        with tf.GradientTape() as tape:
            loss = model.loss_function(*model(inputs, training=True))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    tf.train.Checkpoint(model=model).save(str(run.folder / "checkpoint" / "ckpt"))

    users = {"input_seq": _padded(run.viewings.draw(RECORDED, seed=2)["history"][:, :LENGTH])}
    movies = run.viewings.draw(RECORDED * recorded.CANDIDATES, seed=3)
    candidates = {"candidate": movies["movie_id"]}

    def scores(columns: Columns) -> Any:
        return np.concatenate(
            [
                _predicted(model, take(columns, np.arange(first, first + recorded.CANDIDATES)))
                for first in range(0, size(columns), recorded.CANDIDATES)
            ]
        )

    return recorded.rankings(users, candidates, scores)


def _predicted(model: Any, columns: Columns) -> Any:
    """Returns the scores of the candidates of one user."""
    inputs = {
        "input_seq": columns["input_seq"][:1],
        "candidate": columns["candidate"][np.newaxis],
    }
    return np.asarray(model.predict(inputs))[0]


def _padded(histories: NDArray[Any]) -> NDArray[Any]:
    """Moves the zeros that fill up histories to their beginnings, as the model's sampler does."""
    lengths = (histories > 0).sum(axis=1)
    return np.stack([np.roll(row, -length) for row, length in zip(histories, lengths, strict=True)])
