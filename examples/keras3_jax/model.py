"""A two-tower model for retrieval in Keras 3: who watches what next. JAX trains it, and the
exporter builds it on TensorFlow, so nothing here imports a backend.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
from keras import ops


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


class TwoTower(keras.Model):  # type: ignore[misc]
    """Vectors of viewers and of movies; a larger dot product means a better match."""

    def __init__(self, sizes: Sizes) -> None:
        """Creates the layers."""
        super().__init__(name="two_tower")
        self.users = keras.layers.Embedding(sizes.users, sizes.dim, name="users")
        self.movies = keras.layers.Embedding(sizes.movies, sizes.dim, name="movies")
        self.hours = keras.layers.Embedding(24, 4, name="hours")
        self.query_layers = dense(sizes, "query_layers")
        self.candidate_layers = dense(sizes, "candidate_layers")

    def query(self, inputs: Mapping[str, Any]) -> Any:
        """Computes the vectors of viewers: [b, dim].

        Args:
          inputs: user_id and hour [b], history [b, n]: rows, int32.
        """
        watched = ops.mean(self.movies(inputs["history"]), axis=1)
        parts = [self.users(inputs["user_id"]), watched, self.hours(inputs["hour"])]
        return self.query_layers(ops.concatenate(parts, axis=-1)) + watched

    def candidate(self, inputs: Mapping[str, Any]) -> Any:
        """Computes the vectors of movies: [b, dim].

        Args:
          inputs: movie_id [b], a row, int32; year [b], float32.
        """
        movie = self.movies(inputs["movie_id"])
        decades = (inputs["year"][:, None] - 1990.0) / 10.0
        return self.candidate_layers(ops.concatenate([movie, decades], axis=-1)) + movie

    def call(self, inputs: Mapping[str, Any]) -> Any:
        """Computes the scores of every viewer of a batch with every movie in it: [b, b]."""
        return ops.matmul(self.query(inputs), ops.transpose(self.candidate(inputs)))


def dense(sizes: Sizes, name: str) -> Any:
    """Returns the layers of a tower."""
    layers = [keras.layers.Dense(sizes.hidden, "gelu"), keras.layers.Dense(sizes.dim)]
    return keras.Sequential(layers, name=name)


def build_model() -> TwoTower:
    """Returns the model, whose variables its first call makes."""
    sizes = Sizes(**json.loads(Path(__file__).with_name("sizes.json").read_text()))
    return TwoTower(sizes)
