"""Retrieval and ranking trained together: one model, one checkpoint, tables for each and one that
both read.

Ranking is served elsewhere than retrieval is, and wants none of its tables there.
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
    retrieval_dim: int
    ranking_dim: int
    hidden: tuple[int, ...]


def feature_config(sizes: Sizes) -> dict[str, Any]:
    """Returns the features: inputs read one of retrieval's tables and one of ranking's; that of
    genres is for both.
    """
    embedding = tf.tpu.experimental.embedding

    def table(name: str, rows: int, dim: int) -> Any:
        initializer = tf.initializers.TruncatedNormal(stddev=0.1, seed=rows + dim)
        return embedding.TableConfig(rows, dim, initializer=initializer, combiner="mean", name=name)

    config = {"genres": table("genres", sizes.genres, sizes.ranking_dim)}
    for part, dim in (("retrieval", sizes.retrieval_dim), ("ranking", sizes.ranking_dim)):
        movies = table(f"{part}_movies", sizes.movies, dim)
        config |= {f"{part}_history": movies, f"{part}_movie_id": movies}
        config[f"{part}_user_id"] = table(f"{part}_users", sizes.users, dim)
    config["ranking_hour"] = table("ranking_hours", 24, sizes.ranking_dim)
    return {name: embedding.FeatureConfig(table=one, name=name) for name, one in config.items()}


class CoTrained(tf.keras.Model):  # type: ignore[misc]
    """Both, trained on the same interactions, over one call of one embedding layer."""

    def __init__(self, sizes: Sizes, optimizer: Any = None) -> None:
        """Makes the layers; `optimizer` is that of the tables."""
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
          features: user_id, hour, movie_id [b]; history, genres ragged [b, None] (rows, int64).
        """
        found = self.embedding({name: features[source] for name, source in self.features.items()})
        query = self.query_tower(
            tf.concat([found["retrieval_user_id"], found["retrieval_history"]], 1)
        )
        candidate = self.candidate_tower(
            tf.concat([found["retrieval_movie_id"], found["genres"]], 1)
        )
        sides = [found[name] for name in self.features if not name.startswith("retrieval_")]
        both = tf.concat([*sides, found["ranking_history"] * found["ranking_movie_id"]], 1)
        return {
            "query": query + found["retrieval_history"],
            "candidate": candidate + found["retrieval_movie_id"],
            "watched": tf.reshape(tf.sigmoid(self.top_stack(self.cross(both))), [-1]),
        }


def build_model() -> CoTrained:
    """Returns the untrained model in the sizes that the training wrote beside this file."""
    page = json.loads(Path(__file__).with_name("sizes.json").read_text())
    model = CoTrained(Sizes(**page))
    one = tf.zeros([1], tf.int64)
    several = tf.RaggedTensor.from_row_lengths(tf.zeros([2], tf.int64), [2])
    model(
        {
            name: several if name in ("history", "genres") else one
            for name in set(model.features.values())
        }
    )
    return model
