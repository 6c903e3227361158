"""Trains models of RecBole on random data, in a short loop in place of its trainer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from examples.zoo import torch_towers
from examples.zoo.recorded import Recorded
from examples.zoo.train import Run

MOVIES = 9_743


def _train(run: Run, class_name: str) -> Recorded:
    """Trains a model with its own loss, and records what its `predict` returns."""
    model = run.built("model", class_name=class_name)

    def loss(batch: Mapping[str, Any], _: Any) -> Any:
        return model.calculate_loss(batch)

    return torch_towers.train_ranker(run, model, _draw, loss, model.predict, candidate="item_id")


def _draw(count: int, seed: int) -> dict[str, Any]:
    """Returns histories that end with padding, their lengths, and movies."""
    viewings = torch_towers.viewings(count, seed, users=1, movies=MOVIES, length=20)
    # RecBole has padding behind the events.
    histories = np.flip(viewings["history"], 1).copy()
    return {
        "item_id_list": histories,
        "item_length": (histories > 0).sum(1),
        "item_id": viewings["movie_id"],
    }


sasrec = partial(_train, class_name="SASRec")
gru4rec = partial(_train, class_name="GRU4Rec")
