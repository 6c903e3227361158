"""Trains rankers of Flax on random examples, as `random_rankings` trains those of Keras."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from examples.columns import Columns, size
from examples.zoo.random_rankings import STEPS


@dataclass
class FlaxRanker:
    """A module of Flax linen, and its parameters.

    Attributes:
      module: The module.
      arguments: Returns the argument of the module for columns of inputs.
      parameters: The parameters; None before training.
    """

    module: Any
    arguments: Callable[[Columns], Any]
    parameters: Any = None

    def predict(self, columns: Columns) -> Any:
        """Returns the scores of examples."""
        return self.module.apply(self.parameters, self.arguments(columns))


def fit(model: FlaxRanker, examples: Columns) -> None:
    """Trains a ranker on labels that are drawn at random."""
    inputs = model.arguments(examples)
    labels = np.random.default_rng(0).integers(2, size=size(examples)).astype(np.float32)
    optimizer = optax.adamw(1e-2)
    parameters = model.module.init(jax.random.key(0), inputs)
    state = optimizer.init(parameters)

    @jax.jit
    def step(parameters: Any, state: Any) -> Any:
        def loss(parameters: Any) -> Any:
            scores = model.module.apply(parameters, inputs).reshape(-1)
            return jnp.mean((scores - labels) ** 2)

        updates, state = optimizer.update(jax.grad(loss)(parameters), state, parameters)
        return optax.apply_updates(parameters, updates), state

    for _ in range(STEPS):
        parameters, state = step(parameters, state)
    model.parameters = parameters


def predict(model: FlaxRanker, columns: Columns) -> Any:
    """Returns the scores of a trained ranker."""
    return model.predict(columns)
