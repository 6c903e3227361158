"""Trains rankers of Flax linen on random examples, for `random_rankings.train_ranker`."""

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
      argument: Returns the argument of the module for columns of inputs.
      variables: What `init` of the module returns, trained; None before training.
    """

    module: Any
    argument: Callable[[Columns], Any]
    variables: Any = None

    def fit(self, examples: Columns) -> None:
        """Trains the module on labels that are drawn at random."""
        inputs = self.argument(examples)
        labels = np.random.default_rng(0).integers(2, size=size(examples)).astype(np.float32)
        optimizer = optax.adamw(1e-2)

        def loss(variables: Any) -> Any:
            scores = self.module.apply(variables, inputs)
            return jnp.mean((scores.reshape(-1) - labels) ** 2)

        variables = self.module.init(jax.random.key(0), inputs)
        state = optimizer.init(variables)
        gradient = jax.jit(jax.grad(loss))
        for _ in range(STEPS):
            updates, state = optimizer.update(gradient(variables), state, variables)
            variables = optax.apply_updates(variables, updates)
        self.variables = variables

    def predict(self, columns: Columns) -> Any:
        """Returns the scores of the trained module."""
        return self.module.apply(self.variables, self.argument(columns))
