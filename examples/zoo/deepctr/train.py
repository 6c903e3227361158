"""Trains the models of DeepCTR as its documentation does, for a few steps."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples.columns import Columns
from examples.zoo import recorded
from examples.zoo.recorded import Recorded
from examples.zoo.train import Run

BATCH = 500
STEPS = 4
RANKED = 100
"""The number of rankings that are recorded."""
USER = ("user_id", "user_gender", "bucketized_user_age", "user_rating")
MOVIE = ("movie_id",)
HISTORY = ("hist_movie_id", "seq_length")
HISTORY_LENGTH = 10
SESSIONS = ("sess_0_movie_id", "sess_1_movie_id")
TASKS = ("finish", "like")


def _train(run: Run, context: tuple[str, ...] = USER, outputs: tuple[str, ...] = ()) -> Recorded:
    """Trains a model and saves its weights as the documentation of DeepCTR does."""
    model = run.built(run.name)
    model.compile("adam", "binary_crossentropy")
    viewings = _features(run.viewings.draw(BATCH * STEPS))
    labels = [viewings["user_rating"] > 3] * max(1, len(outputs))
    inputs = {name: viewings[name] for name in (*context, *MOVIE)}
    model.fit(inputs, labels, batch_size=BATCH, verbose=0)
    model.save_weights(run.folder / "model_w.h5")

    users = _features(run.viewings.draw(RANKED, seed=2))
    movies = _features(run.viewings.draw(RANKED * recorded.CANDIDATES, seed=3))
    return recorded.rankings(
        {name: users[name] for name in context},
        {name: movies[name] for name in MOVIE},
        partial(_predictions, model, outputs),
        outputs or ("score",),
    )


def _features(viewings: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Returns the columns as the inputs of a model take them: [n, 1], and the history [n, 10]."""
    features = {
        name: column[:, np.newaxis] for name, column in viewings.items() if column.ndim == 1
    }
    history = viewings["history"][:, :HISTORY_LENGTH]
    features["hist_movie_id"] = history
    features.update(zip(SESSIONS, np.split(history, 2, axis=1), strict=True))
    features["sess_length"] = np.full((len(history), 1), 2, np.int32)
    features["seq_length"] = (history > 0).sum(axis=1, keepdims=True).astype(np.int32)
    return features


def _predictions(model: Any, outputs: tuple[str, ...], columns: Columns) -> Any:
    predicted = model.predict(dict(columns), verbose=0)
    return dict(zip(outputs, predicted, strict=True)) if outputs else predicted


deepfm = xdeepfm = dcnmix = autoint = ccpm = fgcnn = fibinet = nfm = pnn = flen = _train
onn = _train
din = bst = partial(_train, context=(*USER, *HISTORY))
dsin = partial(_train, context=("user_id", *SESSIONS, "sess_length"))
mmoe = ple = esmm = partial(_train, outputs=TASKS)
