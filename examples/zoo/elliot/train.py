"""Trains the neural models of Elliot by their own steps, on random data."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from examples.columns import Columns, size
from examples.zoo.random_rankings import save_checkpoint, train_ranker

VALUES = {"user": range(611), "movie": range(9_743)}


def _fit(model: Any, examples: Columns) -> None:
    labels = np.random.default_rng(0).integers(2, size=(size(examples), 1)).astype(np.float32)
    model.train_step((examples["user"], examples["movie"], labels))


def _predict(model: Any, columns: Columns) -> Any:
    return model.predict((columns["user"], columns["movie"]))


def _recommend(model: Any, columns: Columns) -> Any:
    return model.get_recs((columns["user"], columns["movie"]))


_train = partial(train_ranker, values=VALUES, fit=_fit, save=save_checkpoint)
neumf = gmf = nfm = partial(_train, predict=_predict)
# A score of its `predict` is a matrix: it adds the biases of all examples of a batch.
deepfm = partial(_train, predict=_recommend)
