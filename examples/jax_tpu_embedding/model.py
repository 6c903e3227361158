"""The dense part of a ranker whose features SparseCores look up: will a viewer watch a movie?"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

FEATURES = {
    "user_id": "users",
    "history": "movies",
    "hour": "hours",
    "movie_id": "movies",
    "genres": "genres",
}
"""The table that each feature reads."""
COMBINERS = {"users": "mean", "movies": "mean", "hours": "sum", "genres": "sqrtn"}
HOURS = 24
HOUR_DIM = 4


@dataclass(frozen=True)
class Sizes:
    """The sizes of the model.

    Attributes:
      users: The number of rows of the users' table.
      movies: The number of rows of the movies' table.
      genres: The number of rows of the genres' table.
      dim: The width of the tables' rows.
      hidden: The width of the hidden layer.
    """

    users: int
    movies: int
    genres: int
    dim: int
    hidden: int


class Ranker(nn.Module):  # type: ignore[misc]
    """Scores activations, which combine the rows of each feature, and numbers."""

    hidden: int

    @nn.compact  # type: ignore[untyped-decorator]
    def __call__(self, inputs: Mapping[str, Any]) -> Any:
        """Computes how likely a viewer watches a movie: [b].

        Args:
          inputs: the activation of each feature [b, dim]; year [b].
        """
        decades = (inputs["year"][:, None] - 1990.0) / 10.0
        parts = [inputs[name] for name in FEATURES]
        alike = (inputs["user_id"] + inputs["history"]) * inputs["movie_id"]
        hidden = nn.relu(nn.Dense(self.hidden)(jnp.concatenate([*parts, alike, decades], axis=-1)))
        hidden = nn.relu(nn.Dense(self.hidden // 2)(hidden))
        return nn.sigmoid(nn.Dense(1)(hidden))[:, 0]


def table_specs(sizes: Sizes) -> dict[str, dict[str, Any]]:
    """Returns the specification of each table: the fields of jax-tpu-embedding's TableSpec that an
    export reads.
    """
    shapes = {
        "users": (sizes.users, sizes.dim),
        "movies": (sizes.movies, sizes.dim),
        "hours": (HOURS, HOUR_DIM),
        "genres": (sizes.genres, sizes.dim),
    }
    return {
        name: {
            "name": name,
            "vocabulary_size": rows,
            "embedding_dim": dim,
            "combiner": COMBINERS[name],
        }
        for name, (rows, dim) in shapes.items()
    }


def feature_specs(sizes: Sizes) -> dict[str, dict[str, Any]]:
    """Returns the specification of each feature, as of jax-tpu-embedding's FeatureSpec."""
    tables = table_specs(sizes)
    return {name: {"name": name, "table_spec": tables[table]} for name, table in FEATURES.items()}


def example(sizes: Sizes) -> dict[str, Any]:
    """Returns inputs of the right shapes."""
    dims = {
        name: spec["table_spec"]["embedding_dim"] for name, spec in feature_specs(sizes).items()
    }
    return {name: jnp.zeros((2, dim)) for name, dim in dims.items()} | {"year": jnp.zeros(2)}


def build_model() -> tuple[Any, dict[str, Callable[[Any, Any], Any]], Any]:
    """Returns the shapes of the parameters, the function that the recipe's tower calls, and the
    specifications of the features whose activations it takes.
    """
    sizes = Sizes(**json.loads(Path(__file__).with_name("sizes.json").read_text()))
    model = Ranker(sizes.hidden)
    shapes = jax.eval_shape(model.init, jax.random.key(0), example(sizes))  # allocates nothing

    def watched(parameters: Any, inputs: Any) -> Any:
        return model.apply(parameters, inputs)

    return shapes, {"watched": watched}, feature_specs(sizes)
