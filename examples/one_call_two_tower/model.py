"""A two-tower model for retrieval whose embedding layer is called once, for both towers.

On a TPU the layer is meant to be called once for all features: the lookups of a step are then one
exchange between the chips. Serving needs each tower by itself.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# TFRS needs Keras 2. TensorFlow reads the variable when it is imported.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import tensorflow as tf
import tensorflow_recommenders as tfrs


@dataclass(frozen=True)
class Sizes:
    """The sizes of the model.

    Attributes:
      users: The number of rows of the users' table.
      movies: The number of rows of the movies' table.
      genres: The number of rows of the genres' table.
      dim: The width of the tables' rows.
      hidden: The widths of the hidden layers.
    """

    users: int
    movies: int
    genres: int
    dim: int
    hidden: tuple[int, ...]


def feature_config(sizes: Sizes) -> dict[str, Any]:
    """Returns five features over four tables; what was watched and the candidate read
    the same one.
    """
    embedding = tf.tpu.experimental.embedding

    def table(name: str, rows: int) -> Any:
        initializer = tf.initializers.TruncatedNormal(stddev=0.1, seed=rows)
        return embedding.TableConfig(
            rows, sizes.dim, initializer=initializer, combiner="mean", name=name
        )

    movies = table("movies", sizes.movies)
    tables = {
        "user_id": table("users", sizes.users),
        "history": movies,
        "hour": table("hours", 24),
        "movie_id": movies,
        "genres": table("genres", sizes.genres),
    }
    return {name: embedding.FeatureConfig(table=table, name=name) for name, table in tables.items()}


class TwoTower(tfrs.models.Model):  # type: ignore[misc]
    """Vectors of viewers and of movies; a larger dot product means a better match."""

    def __init__(self, sizes: Sizes, optimizer: Any = None) -> None:
        """Creates the layers; `optimizer` trains the tables."""
        super().__init__()
        config = feature_config(sizes)
        self.features = tuple(config)
        self.embedding = tfrs.layers.embedding.TPUEmbedding(config, optimizer)
        self.query_tower = tfrs.layers.blocks.MLP([*sizes.hidden, sizes.dim])
        self.candidate_tower = tfrs.layers.blocks.MLP([*sizes.hidden, sizes.dim])
        self.task = tfrs.tasks.Retrieval()

    def call(self, features: dict[str, Any]) -> dict[str, Any]:
        """Computes the vectors of viewers and of movies, as many of these as of those: [b, dim]
        each.

        Args:
          features: user_id, hour, movie_id [b]; history, genres ragged [b, None] (rows, int64).
        """
        embedded = self.embedding({name: features[name] for name in self.features})
        query = self.query_tower(
            tf.concat([embedded["user_id"], embedded["history"], embedded["hour"]], 1)
        )
        candidate = self.candidate_tower(tf.concat([embedded["movie_id"], embedded["genres"]], 1))
        return {"query": query + embedded["history"], "candidate": candidate + embedded["movie_id"]}

    def compute_loss(self, features: dict[str, Any], training: bool = False) -> Any:
        """Returns the loss that separates each viewer's movie from all others of the batch."""
        vectors = self(features, training=training)
        movie_ids = tf.as_string(features["movie_id"])
        return self.task(
            vectors["query"], vectors["candidate"], candidate_ids=movie_ids, compute_metrics=False
        )


def build_model() -> TwoTower:
    """Returns the untrained model in the sizes that the training wrote beside this file."""
    sizes = Sizes(**json.loads(Path(__file__).with_name("sizes.json").read_text()))
    model = TwoTower(sizes)
    single_id = tf.zeros([1], tf.int64)
    several = tf.RaggedTensor.from_row_lengths(tf.zeros([2], tf.int64), [2])
    # Keras creates the variables of layers at the first call.
    inputs = dict.fromkeys(model.features, single_id)
    model(inputs | {"history": several, "genres": several})
    return model
