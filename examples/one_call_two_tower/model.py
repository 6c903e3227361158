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

# TFRS speaks Keras 2; read when TensorFlow is imported.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import tensorflow as tf
import tensorflow_recommenders as tfrs


@dataclass(frozen=True)
class Sizes:
    """Rows of each table, and the widths of the network."""

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
    return {name: embedding.FeatureConfig(table=one, name=name) for name, one in tables.items()}


class TwoTower(tfrs.models.Model):  # type: ignore[misc]
    """Vectors of viewers and of movies; their dot product says how well they go together."""

    def __init__(self, sizes: Sizes, optimizer: Any = None) -> None:
        """Makes the layers; `optimizer` is that of the tables."""
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
        found = self.embedding({name: features[name] for name in self.features})
        query = self.query_tower(tf.concat([found["user_id"], found["history"], found["hour"]], 1))
        candidate = self.candidate_tower(tf.concat([found["movie_id"], found["genres"]], 1))
        return {"query": query + found["history"], "candidate": candidate + found["movie_id"]}

    def compute_loss(self, features: dict[str, Any], training: bool = False) -> Any:
        """Lets every viewer of the batch tell the own movie from all others of the batch."""
        found = self(features, training=training)
        own = tf.as_string(features["movie_id"])
        return self.task(
            found["query"], found["candidate"], candidate_ids=own, compute_metrics=False
        )


def build_model() -> TwoTower:
    """Returns the untrained model in the sizes that the training wrote beside this file."""
    page = json.loads(Path(__file__).with_name("sizes.json").read_text())
    model = TwoTower(Sizes(**page))
    one = tf.zeros([1], tf.int64)
    several = tf.RaggedTensor.from_row_lengths(tf.zeros([2], tf.int64), [2])
    model({name: several if name in ("history", "genres") else one for name in model.features})
    return model
