"""A two-tower model for retrieval in Flax: who watches what next."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

HISTORY = 5
"""Length of a history: the movies that a viewer watched last."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of the model.

    Attributes:
      users: The number of rows of the users' table.
      movies: The number of rows of the movies' table.
      dim: The width of the tables' rows.
      hidden: The width of the hidden layer.
    """

    users: int
    movies: int
    dim: int
    hidden: int


class TwoTower(nn.Module):  # type: ignore[misc]
    """Vectors of viewers and of movies; a larger dot product means a better match."""

    sizes: Sizes

    def setup(self) -> None:
        """Names the layers."""
        sizes = self.sizes
        self.users = nn.Embed(sizes.users, sizes.dim)
        self.movies = nn.Embed(sizes.movies, sizes.dim)
        self.hours = nn.Embed(24, 4)
        self.query_hidden = nn.Dense(sizes.hidden)
        self.query_vector = nn.Dense(sizes.dim)
        self.candidate_hidden = nn.Dense(sizes.hidden)
        self.candidate_vector = nn.Dense(sizes.dim)

    def query(self, inputs: Mapping[str, Any]) -> Any:
        """Computes the vectors of viewers: [b, dim].

        Args:
          inputs: The inputs by name: user_id and hour, [b], and history, [b, HISTORY]; rows, int32.
        """
        watched = self.movies(inputs["history"]).mean(axis=1)
        parts = [self.users(inputs["user_id"]), watched, self.hours(inputs["hour"])]
        hidden = nn.gelu(self.query_hidden(jnp.concatenate(parts, axis=-1)))
        return self.query_vector(hidden) + watched

    def candidate(self, inputs: Mapping[str, Any]) -> Any:
        """Computes the vectors of movies: [b, dim].

        Args:
          inputs: The inputs by name: movie_id, [b] int32, rows; year, [b] float32.
        """
        movie = self.movies(inputs["movie_id"])
        decades = (inputs["year"][:, None] - 1990.0) / 10.0
        hidden = nn.gelu(self.candidate_hidden(jnp.concatenate([movie, decades], axis=-1)))
        return self.candidate_vector(hidden) + movie

    def __call__(self, inputs: Mapping[str, Any]) -> Any:
        """Computes both vectors."""
        return self.query(inputs), self.candidate(inputs)


def example() -> dict[str, Any]:
    """Returns inputs of the right shapes."""
    rows = jnp.zeros(2, jnp.int32)
    history = jnp.zeros((2, HISTORY), jnp.int32)
    years = jnp.zeros(2, jnp.float32)
    return {"user_id": rows, "hour": rows, "history": history, "movie_id": rows, "year": years}


def build_model() -> tuple[Any, dict[str, Callable[[Any, Any], Any]]]:
    """Returns the shapes of the parameters, and the functions that the recipe's towers call."""
    sizes = Sizes(**json.loads(Path(__file__).with_name("sizes.json").read_text()))
    model = TwoTower(sizes)
    # Only shapes are computed: the parameters come from the checkpoint.
    shapes = jax.eval_shape(model.init, jax.random.key(0), example())

    def query(parameters: Any, inputs: Any) -> Any:
        return model.apply(parameters, inputs, method="query")

    def candidate(parameters: Any, inputs: Any) -> Any:
        return model.apply(parameters, inputs, method="candidate")

    return shapes, {"query": query, "candidate": candidate}
