"""Trains a two-tower model in JAX, and writes the files of an export.

python -m examples.flax_two_tower.train [--out DIR]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from examples import jax_training, trained, two_towers
from examples.columns import Columns
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
    jax_training.save(out, state)


def fit(model: TwoTower, columns: Columns, scale: trained.Scale) -> dict[str, Any]:
    """Returns trained parameters, and the optimizer's state as it would be saved with them."""
    parameters = jax.jit(model.init)(jax.random.key(3), example())

    def loss_of(parameters: Any, batch: Any) -> Any:
        # For every viewer, the loss separates the watched movie from all others of the batch.
        query, candidate = model.apply(parameters, batch)
        scores = query @ candidate.T
        labels = jnp.arange(len(scores))
        return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()

    batches = jax_training.shuffled(arrays(columns), BATCH[scale], EPOCHS[scale])
    return jax_training.fit(parameters, optax.adam(0.003), loss_of, batches)


if __name__ == "__main__":
    trained.command_line("flax_two_tower", train)
