"""Trains a two-tower model in JAX, and writes what an export needs.

python -m examples.flax_two_tower.train [--out DIR]
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp

from examples import trained, two_towers
from examples.columns import Columns, size, take
from examples.flax_two_tower.model import HISTORY, Sizes, TwoTower, example
from examples.two_towers import BATCH, EPOCHS, WIDTHS, arrays, inputs, with_history
from examples.watching import Watching


def train(out: Path, scale: trained.Scale = "small") -> None:
    """Trains, and writes the folder `out`."""
    watching = Watching(scale, HISTORY)
    dim, hidden = WIDTHS[scale]
    sizes = Sizes(watching.users, watching.movies, dim, hidden)
    model = TwoTower(sizes)
    state = fit(model, inputs(watching, with_history(watching, watching.trained)), scale)

    def call(name: str, columns: Columns) -> np.ndarray:
        return np.asarray(model.apply(state["params"], arrays(columns), method=name))

    two_towers.write(out, Path(__file__).parent, sizes, watching, call, scale)
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


if __name__ == "__main__":
    trained.command_line("flax_two_tower", train)
