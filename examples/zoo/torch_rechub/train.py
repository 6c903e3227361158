"""Trains models of Torch-RecHub on random data, in a short loop in place of its trainers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from examples.zoo import recorded, torch_towers
from examples.zoo.recorded import Recorded
from examples.zoo.train import Run
from scripts.torch_tower import write_tower

MOVIES = 9_743

draw = partial(torch_towers.viewings, users=611, movies=MOVIES, length=20)


def bst(run: Run) -> Recorded:
    """Trains the ranker."""
    model = run.built("bst_model")

    def loss(batch: Mapping[str, Any], labels: Any) -> Any:
        return functional.binary_cross_entropy(model(batch), labels)

    return torch_towers.train_ranker(run, model, draw, loss, model)


def gru4rec(run: Run) -> Recorded:
    """Trains both towers, and writes them in the modes that its documentation sets."""
    model = run.built("gru4rec_model")

    def loss(batch: Mapping[str, Any], labels: Any) -> Any:
        others = torch.randint(1, MOVIES, (len(labels), 3))
        movies = model.item_tower({**batch, "other_movies": others})
        scores = (model.user_tower(batch) * movies).sum(-1)
        return functional.cross_entropy(scores, torch.zeros_like(scores[:, 0]).long())

    torch_towers.fit(model, draw, loss)
    requested = draw(torch_towers.RECORDED // 2, seed=2)
    columns = draw(torch_towers.EXAMPLES, seed=5)
    responses = Recorded([], {})
    for mode, tower, names in (
        ("user", "query", ("user_id", "history")),
        ("item", "candidate", ("movie_id",)),
    ):
        model.mode = mode
        examples = {name: columns[name] for name in names}
        columns[mode] = torch_towers.outputs(model, examples)
        write_tower(model, torch_towers.tensors(examples), run.folder / f"{mode}.npz")
        features = {name: requested[name] for name in names}
        responses += recorded.embeddings(tower, features, torch_towers.outputs(model, features))
    torch_towers.write(run.folder, model, columns)
    return responses
