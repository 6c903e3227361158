"""Trains a two-tower model in JAX, and writes what an export needs.

python -m examples.flax_two_tower.train [--out DIR]
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp

from examples import requests, trained
from examples.columns import Column, Columns, Ints, Ragged, sent, size, take
from examples.flax_two_tower.model import HISTORY, Sizes, TwoTower, example
from examples.watching import Watching

WIDTHS = {"tiny": (4, 8), "small": (32, 64), "article": (64, 256)}
"""dim, hidden."""
EPOCHS = {"tiny": 1, "small": 3, "article": 1}
BATCH = {"tiny": 200, "small": 500, "article": 4_000}
K = 10


def train(out: Path, scale: trained.Scale = "small") -> None:
    """Trains, and writes the folder `out`."""
    watching = Watching(scale, HISTORY)
    dim, hidden = WIDTHS[scale]
    sizes = Sizes(watching.users, watching.movies, dim, hidden)
    model = TwoTower(sizes)
    state = fit(model, inputs(watching, with_history(watching, watching.trained)), scale)

    def call(name: str, columns: Columns) -> np.ndarray:
        return np.asarray(model.apply(state["params"], arrays(columns), method=name))

    rows = np.arange(watching.movies)
    vectors = call("candidate", of_movies(watching, rows))
    held_out = with_history(watching, watching.held_out)
    scores = call("query", inputs(watching, held_out)) @ vectors.T
    own = np.take_along_axis(scores, watching.watched(held_out)[:, np.newaxis], 1)
    recall = np.mean((scores > own).sum(1) < 100)
    print(f"recall@100 of what was watched, held out: {recall:.3f}")

    asked = ask(call, watching, vectors, requests.COUNT[scale])
    trained.write_files(out, Path(__file__).parent, sizes, asked)
    watching.write_catalogue(out)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save((out / "checkpoint").resolve(), state)


def fit(model: TwoTower, columns: Columns, scale: trained.Scale) -> dict[str, Any]:
    """Returns trained parameters, and the optimizer's state as it would be saved with them."""
    optimizer = optax.adam(0.003)
    parameters = jax.jit(model.init)(jax.random.key(3), example())
    state = optimizer.init(parameters)

    def loss_of(parameters: Any, batch: Any) -> Any:
        # Every viewer tells the own movie from all others of the batch.
        query, candidate = model.apply(parameters, batch)
        scores = query @ candidate.T
        own = jnp.arange(len(scores))
        return optax.softmax_cross_entropy_with_integer_labels(scores, own).mean()

    @jax.jit
    def step(parameters: Any, state: Any, batch: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(parameters, batch)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(parameters, updates), state, loss

    start = time.monotonic()
    losses = []
    random = np.random.default_rng(1)
    for _ in range(EPOCHS[scale]):
        order = random.permutation(size(columns))
        for first in range(0, len(order) - BATCH[scale] + 1, BATCH[scale]):
            batch = arrays(take(columns, order[first : first + BATCH[scale]]))
            parameters, state, loss = step(parameters, state, batch)
            losses.append(float(loss))
    seconds = time.monotonic() - start
    print(
        f"{len(losses)} steps, {seconds:.0f} s: loss {losses[0]:.4f}, in the end {losses[-1]:.4f}"
    )
    return {"params": parameters, "opt_state": state}


def with_history(watching: Watching, interactions: Ints) -> Ints:
    """Returns the interactions before which enough movies were watched."""
    history = watching.contexts(interactions)["history"]
    if not isinstance(history, Ragged):
        raise TypeError("histories are ragged")
    return interactions[np.diff(history.offsets) == HISTORY]


def inputs(watching: Watching, interactions: Ints) -> dict[str, Column]:
    """Returns what the model takes: contexts, and the movies that were watched in them."""
    contexts = watching.contexts(interactions)
    history = contexts["history"]
    if not isinstance(history, Ragged):
        raise TypeError("histories are ragged")
    last = history.values.reshape(-1, HISTORY)
    return {**contexts, "history": last, **of_movies(watching, watching.watched(interactions))}


def of_movies(watching: Watching, rows: Ints) -> dict[str, Column]:
    """Returns what the model takes of movies."""
    known = watching.of_movies(rows)
    return {"movie_id": known["movie_id"], "year": known["year"]}


def arrays(columns: Columns) -> dict[str, Any]:
    """Returns columns as the model takes them: rows are int32, which JAX has by default."""
    found = {name: np.asarray(column) for name, column in columns.items()}
    return {
        name: jnp.asarray(array, jnp.float32 if array.dtype.kind == "f" else jnp.int32)
        for name, array in found.items()
    }


def ask(
    call: Callable[[str, Columns], np.ndarray],
    watching: Watching,
    vectors: np.ndarray,
    count: int,
) -> trained.Asked:
    """Returns retrievals and embeddings in turn, and what the model returns by exact search."""
    interactions = watching.draw(with_history(watching, watching.interactions), count)
    columns = inputs(watching, interactions)
    queries = call("query", columns)
    named = watching.ids(columns)
    contexts = {name: named[name] for name in ("user_id", "history", "hour")}
    movies = {name: named[name] for name in ("movie_id", "year")}
    bodies: list[requests.Body] = []
    for place in range(count):
        tower = ("query", "candidate")[place // 2 % 2]
        if place % 2 == 0:
            bodies.append({"call": "retrieve", "features": sent(contexts, place), "k": K})
        else:
            features = sent(contexts if tower == "query" else movies, place)
            bodies.append({"call": "embed", "tower": tower, "features": features})
    scores = queries[::2].astype(np.float64) @ vectors.T.astype(np.float64)
    expected = {
        "neighbors": -np.sort(-scores, axis=1)[:, :K].astype(np.float32),
        "query": queries[1::4],
        "candidate": vectors[watching.watched(interactions)][3::4],
    }
    return trained.Asked(bodies, expected, named)


if __name__ == "__main__":
    trained.command_line("flax_two_tower", train)
