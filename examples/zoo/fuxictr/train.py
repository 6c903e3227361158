"""Trains models of FuxiCTR on random data, in a short loop in place of its trainer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from examples.zoo import torch_towers
from examples.zoo.recorded import Recorded
from examples.zoo.train import Run

draw = partial(torch_towers.viewings, users=611, movies=9_743, length=20)


def bst(run: Run) -> Recorded:
    """Trains the ranker with the loss of its configuration."""
    model = run.built("bst_model")

    def loss(batch: Mapping[str, Any], labels: Any) -> Any:
        return model.compute_loss(model(batch), labels[:, None])

    def score(batch: Mapping[str, Any]) -> Any:
        return model(batch)["y_pred"][:, 0]

    return torch_towers.train_ranker(run, model, draw, loss, score)
