"""Trains the ranking models of TensorFlow's Model Garden on random impressions, for a few steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples.columns import Columns
from examples.zoo import recorded
from examples.zoo.random_rankings import save_checkpoint, train_ranker
from examples.zoo.recorded import Recorded
from examples.zoo.train import Run

BATCH = 500
STEPS = 3
RECORDED = 100
"""The number of requests whose responses are compared."""
SIZES = {
    "sparse_features.0": 9_743,
    "sparse_features.1": 611,
    "sparse_features.2": 2_000,
    "sparse_features.3": 100,
}
CANDIDATE = "sparse_features.0"


def dlrm(run: Run) -> Recorded:
    """Trains the DLRM."""
    return _ranking(run, "dlrm")


def dcn(run: Run) -> Recorded:
    """Trains the DCN v2."""
    return _ranking(run, "dcn")


def ncf(run: Run) -> Recorded:
    """Trains the NeuMF."""
    values = {"user_id": range(611), "item_id": range(9_743)}
    return train_ranker(run, values, save=save_checkpoint)


def _ranking(run: Run, name: str) -> Recorded:
    """Trains a model, and saves it with its optimizer, as the trainer does."""
    import tensorflow as tf

    model = run.built(name)
    impressions = _impressions(BATCH * STEPS, seed=1)
    clicks = np.random.default_rng(1).integers(2, size=BATCH * STEPS)
    data = tf.data.Dataset.from_tensor_slices((recorded.nested(impressions), clicks))
    model.fit(data.batch(BATCH, drop_remainder=True), verbose=0)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    tf.train.CheckpointManager(checkpoint, str(run.folder / "model"), max_to_keep=1).save()

    users = _impressions(RECORDED, seed=2)
    movies = _impressions(RECORDED * recorded.CANDIDATES, seed=3)
    del users[CANDIDATE]

    def call(columns: Columns) -> Any:
        return model(tf.nest.map_structure(tf.constant, recorded.nested(columns)))

    return recorded.rankings(users, {CANDIDATE: movies[CANDIDATE]}, call)


def _impressions(count: int, seed: int) -> dict[str, NDArray[Any]]:
    """Returns impressions in the shape of Criteo's data."""
    random = np.random.default_rng(seed)
    numbers = random.uniform(size=(count, 13)).astype(np.float32)
    ids: Mapping[str, NDArray[Any]] = {
        name: random.integers(size, size=count).astype(np.int32) for name, size in SIZES.items()
    }
    return {"dense_features": numbers, **ids}
