"""Retrieval and ranking trained together: one model, one checkpoint, tables for each stage, and a
table that both stages read.

Separate services may serve the two stages: the ranking needs none of the retrieval's tables.
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
      retrieval_dim: The width of the tables of the retrieval.
      ranking_dim: The width of the tables of the ranking.
      hidden: The widths of the hidden layers.
    """

    users: int
    movies: int
    genres: int
    retrieval_dim: int
    ranking_dim: int
    hidden: tuple[int, ...]


def feature_config(sizes: Sizes) -> dict[str, Any]:
    """Returns the features: an input reads a table of the retrieval and one of the ranking; both
    stages read the table of genres.
    """
    embedding = tf.tpu.experimental.embedding

    def table(name: str, rows: int, dim: int) -> Any:
        initializer = tf.initializers.TruncatedNormal(stddev=0.1, seed=rows + dim)
        return embedding.TableConfig(rows, dim, initializer=initializer, combiner="mean", name=name)

    config = {"genres": table("genres", sizes.genres, sizes.ranking_dim)}
    for stage, dim in (("retrieval", sizes.retrieval_dim), ("ranking", sizes.ranking_dim)):
        movies = table(f"{stage}_movies", sizes.movies, dim)
        config |= {f"{stage}_history": movies, f"{stage}_movie_id": movies}
        config[f"{stage}_user_id"] = table(f"{stage}_users", sizes.users, dim)
    config["ranking_hour"] = table("ranking_hours", 24, sizes.ranking_dim)
    return {name: embedding.FeatureConfig(table=table, name=name) for name, table in config.items()}


class CoTrained(tf.keras.Model):  # type: ignore[misc]
    """Both stages, trained on the same interactions, over one call of one embedding layer."""

    def __init__(self, sizes: Sizes, optimizer: Any = None) -> None:
        """Creates the layers; `optimizer` trains the tables."""
        super().__init__()
        config = feature_config(sizes)
        self.features = {
            name: name.removeprefix("retrieval_").removeprefix("ranking_") for name in config
        }
        self.embedding = tfrs.layers.embedding.TPUEmbedding(config, optimizer)
        self.query_tower = tfrs.layers.blocks.MLP([*sizes.hidden, sizes.retrieval_dim])
        self.candidate_tower = tfrs.layers.blocks.MLP([*sizes.hidden, sizes.retrieval_dim])
        self.cross = tfrs.layers.feature_interaction.Cross()
        self.top_stack = tfrs.layers.blocks.MLP([*sizes.hidden, 1])

    def call(self, features: dict[str, Any]) -> dict[str, Any]:
        """Computes query and candidate [b, retrieval_dim], and watched [b] float32 between 0 and 1.

        Args:
          features: The inputs by name, rows of tables, int64: user_id, hour and movie_id, [b];
            history and genres, ragged [b, None].
        """
        embedded = self.embedding(
            {name: features[source] for name, source in self.features.items()}
        )
        query = self.query_tower(
            tf.concat([embedded["retrieval_user_id"], embedded["retrieval_history"]], 1)
        )
        candidate = self.candidate_tower(
            tf.concat([embedded["retrieval_movie_id"], embedded["genres"]], 1)
        )
        sides = [embedded[name] for name in self.features if not name.startswith("retrieval_")]
        joined = tf.concat([*sides, embedded["ranking_history"] * embedded["ranking_movie_id"]], 1)
        return {
            "query": query + embedded["retrieval_history"],
            "candidate": candidate + embedded["retrieval_movie_id"],
            "watched": tf.reshape(tf.sigmoid(self.top_stack(self.cross(joined))), [-1]),
        }


def build_model() -> CoTrained:
    """Returns the untrained model in the sizes that the training wrote beside this file."""
    sizes = Sizes(**json.loads(Path(__file__).with_name("sizes.json").read_text()))
    model = CoTrained(sizes)
    single_id = tf.zeros([1], tf.int64)
    several = tf.RaggedTensor.from_row_lengths(tf.zeros([2], tf.int64), [2])
    # Keras creates the variables of layers at the first call.
    inputs = dict.fromkeys(model.features.values(), single_id)
    model(inputs | {"history": several, "genres": several})
    return model
