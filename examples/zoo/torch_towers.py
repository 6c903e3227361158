"""Trains modules of PyTorch, and writes what an export of them reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed import checkpoint

from examples.columns import Columns
from examples.zoo import recorded
from examples.zoo.recorded import Recorded
from examples.zoo.train import Run
from scripts.torch_tower import write_tower

EXAMPLES = 64
"""Number of examples with recorded outputs, for the export."""
RECORDED = 100
"""The number of requests whose responses are compared."""
STEPS = 3
BATCH = 500


class Tower(torch.nn.Module):
    """A function of a module as a module of one dict, as `write_tower` takes it."""

    def __init__(self, model: Any, call: Callable[[Any], Any]) -> None:
        """Takes a module, and a function of a dict that calls it."""
        super().__init__()
        self.model = model
        self._call = call

    def forward(self, inputs: Mapping[str, Any]) -> Any:
        """Returns the result of the function."""
        return self._call(inputs)


def train_ranker(
    run: Run,
    model: Any,
    draw: Callable[[int, int], dict[str, Any]],
    loss: Callable[[Any, Any], Any],
    score: Callable[[Any], Any],
    candidate: str = "movie_id",
) -> Recorded:
    """Trains a module, writes the file NAME.npz of an entry, and records its rankings.

    Args:
      run: The run.
      model: The module.
      draw: Returns as many examples as the first argument says, for the seed in the second one.
      loss: Returns the loss for inputs and labels.
      score: Returns the score of each example.
      candidate: The input that differs by candidate.
    """
    fit(model, draw, loss)
    tower = Tower(model, score).eval()
    examples = draw(EXAMPLES, 5)
    write(run.folder, model, {**examples, "score": outputs(tower, examples)})
    write_tower(tower, tensors(examples), run.folder / f"{run.name}.npz")

    contexts = draw(RECORDED, 2)
    del contexts[candidate]
    candidates = draw(RECORDED * recorded.CANDIDATES, 3)[candidate]
    return recorded.rankings(contexts, {candidate: candidates}, lambda pairs: outputs(tower, pairs))


def fit(model: Any, draw: Callable[[int, int], Columns], loss: Callable[[Any, Any], Any]) -> None:
    """Trains a module for a few steps.

    Args:
      model: The module.
      draw: Returns as many examples as the first argument says, for the seed in the second one.
      loss: Returns the loss for inputs and labels.
    """
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    random = np.random.default_rng(0)
    model.train()
    for seed in range(10, 10 + STEPS):
        labels = torch.from_numpy(random.integers(2, size=BATCH).astype(np.float32))
        optimizer.zero_grad()
        loss(tensors(draw(BATCH, seed)), labels).backward()
        optimizer.step()
    model.eval()


def outputs(call: Callable[[Any], Any], columns: Columns) -> Any:
    """Returns what a trained module returns."""
    with torch.no_grad():
        return call(tensors(columns)).numpy()


def write(folder: Path, model: Any, columns: Mapping[str, Any]) -> None:
    """Writes the checkpoint of a module, and inputs beside what the trained module returned."""
    checkpoint.save({"model": model.state_dict()}, checkpoint_id=folder / "checkpoint")
    rows = zip(*(np.asarray(column).tolist() for column in columns.values()), strict=True)
    lines = [json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows]
    (folder / "examples.jsonl").write_text("".join(lines), encoding="utf-8")


def tensors(columns: Columns) -> dict[str, Any]:
    """Returns columns as a module takes them."""
    return {name: torch.from_numpy(np.asarray(column)) for name, column in columns.items()}


def viewings(count: int, seed: int, users: int, movies: int, length: int) -> dict[str, Any]:
    """Returns random users, histories that begin with padding, and movies.

    Args:
      count: The number of examples.
      seed: The seed of the generator.
      users: The number of users.
      movies: The number of movies, of which 0 is padding.
      length: The number of movies of a history, which has one or more.
    """
    random = np.random.default_rng(seed)
    padding = random.integers(length, size=(count, 1))
    watched = random.integers(1, movies, (count, length))
    return {
        "user_id": random.integers(users, size=count),
        "history": watched * (np.arange(length) >= padding),
        "movie_id": random.integers(1, movies, count),
    }
