"""Trains the BERT4Rec of BERT4Rec-VAE-Pytorch on random data, with the loss of its trainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.nn import functional

from examples.zoo import torch_towers
from examples.zoo.recorded import Recorded
from examples.zoo.train import Run
from examples.zoo.viewings import MOVIES

MASK = MOVIES + 1


def bert4rec(run: Run) -> Recorded:
    """Trains the model to predict the movie at the masked position."""
    model = run.built("bert4rec_model")

    def loss(batch: Mapping[str, Any], _: Any) -> Any:
        return functional.cross_entropy(model(batch["history"])[:, -1], batch["movie_id"])

    def score(batch: Mapping[str, Any]) -> Any:
        # As `calculate_metrics` of the trainer takes the scores of candidates.
        scores = model(batch["history"])[:, -1]
        return scores.gather(1, batch["movie_id"][:, None])[:, 0]

    return torch_towers.train_ranker(run, model, _draw, loss, score)


def _draw(count: int, seed: int) -> dict[str, Any]:
    """Returns histories that end with the mask, and movies."""
    columns = torch_towers.viewings(count, seed, users=1, movies=MOVIES + 1, length=20)
    del columns["user_id"]
    columns["history"][:, -1] = MASK
    return columns
