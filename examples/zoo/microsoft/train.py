"""Trains models of Microsoft's recommenders, for a few steps."""

from __future__ import annotations

from collections.abc import Mapping
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
WORDS = 700


def sasrec(run: Run) -> Recorded:
    """Trains the model with its own loss; its `predict` returns the scores of one user."""
    return _sequential(run)


def ssept(run: Run) -> Recorded:
    """Trains the model as `sasrec`, which it extends by the user."""
    return _sequential(run, training={"users": "user_id"}, served={"user": "user_id"})


def _sequential(
    run: Run, training: Mapping[str, str] = {}, served: Mapping[str, str] = {}
) -> Recorded:
    """Trains a model that reads a history, and further columns by the names of its inputs."""
    import tensorflow as tf

    model = run.built(run.name)
    optimizer = tf.keras.optimizers.Adam(0.001)
    viewings = run.viewings.draw(BATCH * STEPS)
    viewings["history"] = _padded(viewings["history"][:, : LENGTH + 1])
    for step in range(STEPS):
        batch = take(viewings, np.arange(step * BATCH, (step + 1) * BATCH))
        watched = batch["history"]
        inputs = {
            "input_seq": watched[:, :-1],
            "positive": watched[:, 1:],
            "negative": np.roll(watched[:, 1:], 1, axis=0),
            **{name: batch[column][:, np.newaxis] for name, column in training.items()},
        }
        with tf.GradientTape() as tape:
            loss = model.loss_function(*model(inputs, training=True))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    tf.train.Checkpoint(model=model).save(str(run.folder / "checkpoint" / "ckpt"))

    drawn = run.viewings.draw(RECORDED, seed=2)
    users = {"input_seq": _padded(drawn["history"][:, :LENGTH])}
    users.update((name, drawn[column]) for name, column in served.items())
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


def nrms(run: Run) -> Recorded:
    """Trains the model on random titles; its two encoders compute the vectors that are served."""
    random = np.random.default_rng(0)
    np.save(run.folder / "words.npy", random.normal(size=(WORDS, 20)).astype(np.float32))
    model = run.built("nrms")
    clicked, titles = random.integers(WORDS, size=(2, BATCH * STEPS, 5, 10), dtype=np.int32)
    labels = np.eye(5)[random.integers(5, size=BATCH * STEPS)]
    model.model.fit([clicked, titles], labels, batch_size=BATCH, verbose=0)
    model.model.save_weights(run.folder / "model_w.h5")

    clicked = clicked[: RECORDED // 2]
    title = titles[: RECORDED // 2, 0]
    queries = model.userencoder.predict(clicked)
    return recorded.embeddings("query", {"clicked_titles": clicked}, queries) + recorded.embeddings(
        "candidate", {"title": title}, model.newsencoder.predict(title)
    )


def _predicted(model: Any, columns: Columns) -> Any:
    """Returns the scores of the candidates of one user."""
    inputs = {name: column[:1] for name, column in columns.items()}
    inputs["candidate"] = columns["candidate"][np.newaxis]
    if "user" in inputs:
        inputs["user"] = inputs["user"][:, np.newaxis]
    return np.asarray(model.predict(inputs))[0]


def _padded(histories: NDArray[Any]) -> NDArray[Any]:
    """Moves the zeros that fill up histories to their beginnings, as the model's sampler does."""
    lengths = (histories > 0).sum(axis=1)
    return np.stack([np.roll(row, -length) for row, length in zip(histories, lengths, strict=True)])
