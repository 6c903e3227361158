"""Self-attention over what a viewer watched last: the ranking of SASRec's kind, with a mask and
some context.

Source: Kang and McAuley, Self-Attentive Sequential Recommendation, arXiv:1808.09781.
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

FEATURES = ("history", "hour", "movie_id", "genres")


@dataclass(frozen=True)
class Sizes:
    """Rows of each table, and the widths of the network."""

    movies: int
    genres: int
    dim: int
    length: int
    """Movies of the history that are looked at, from its beginning: the newest."""
    heads: int
    blocks: int
    top: tuple[int, ...]


def feature_config(sizes: Sizes) -> dict[str, Any]:
    """Returns four features over three tables; the history is a sequence over the movies' table."""
    embedding = tf.tpu.experimental.embedding

    def table(name: str, rows: int, combiner: str = "mean") -> Any:
        initializer = tf.initializers.TruncatedNormal(stddev=0.1, seed=rows)
        return embedding.TableConfig(
            rows, sizes.dim, initializer=initializer, combiner=combiner, name=name
        )

    movies = table("movies", sizes.movies)
    return {
        "history": embedding.FeatureConfig(
            table=movies, max_sequence_length=sizes.length, name="history"
        ),
        "hour": embedding.FeatureConfig(table=table("hours", 24), name="hour"),
        "movie_id": embedding.FeatureConfig(table=movies, name="movie_id"),
        "genres": embedding.FeatureConfig(
            table=table("genres", sizes.genres, "sum"), name="genres"
        ),
    }


class Block(tf.keras.layers.Layer):  # type: ignore[misc]
    """Attention and two dense layers, each with a shortcut around it."""

    def __init__(self, heads: int, dim: int) -> None:
        """Makes the layers."""
        super().__init__()
        self.attention = tf.keras.layers.MultiHeadAttention(heads, dim // heads)
        self.norms = [tf.keras.layers.LayerNormalization() for _ in range(2)]
        self.dense = tfrs.layers.blocks.MLP([dim, dim])

    def call(self, sequence: Any, mask: Any) -> Any:
        """Lets every place of [b, length, dim] look at the places that `mask` [b, length] has."""
        attended = self.norms[0](
            sequence + self.attention(sequence, sequence, attention_mask=mask[:, tf.newaxis, :])
        )
        return self.norms[1](attended + self.dense(attended))


class SequenceModel(tf.keras.Model):  # type: ignore[misc]
    """The chance that a movie is watched next."""

    def __init__(self, sizes: Sizes, optimizer: Any = None) -> None:
        """Makes the layers; `optimizer` is that of the tables."""
        super().__init__()
        self.length = sizes.length
        self.embedding = tfrs.layers.embedding.TPUEmbedding(feature_config(sizes), optimizer)
        self.places = self.add_weight(
            "places", [sizes.length, sizes.dim], initializer=tf.initializers.RandomNormal(0, 0.05)
        )
        self.blocks = [Block(sizes.heads, sizes.dim) for _ in range(sizes.blocks)]
        self.top_stack = tfrs.layers.blocks.MLP([*sizes.top, 1])

    def call(self, features: dict[str, Any]) -> dict[str, Any]:
        """Computes watched, [b] float32 between 0 and 1.

        Args:
          features: history ragged [b, None], the newest first; hour, movie_id [b]; genres ragged
            [b, None] (rows, int64); year [b] float32.
        """
        found = self.embedding({name: features[name] for name in FEATURES})
        mask = tf.sequence_mask(
            tf.minimum(features["history"].row_lengths(), self.length), self.length
        )
        sequence = found["history"] + self.places
        for block in self.blocks:
            sequence = block(sequence, mask)
        held = tf.cast(mask, tf.float32)[:, :, tf.newaxis]
        viewer = tf.reduce_sum(sequence * held, 1) / tf.maximum(tf.reduce_sum(held, 1), 1.0)
        age = (tf.expand_dims(features["year"], 1) - 1990.0) / 20.0
        both = [
            viewer,
            found["hour"],
            found["movie_id"],
            found["genres"],
            viewer * found["movie_id"],
            age,
        ]
        return {"watched": tf.reshape(tf.sigmoid(self.top_stack(tf.concat(both, 1))), [-1])}


def build_model() -> SequenceModel:
    """Returns the untrained model in the sizes that the training wrote beside this file."""
    page = json.loads(Path(__file__).with_name("sizes.json").read_text())
    model = SequenceModel(Sizes(**page))
    one = tf.zeros([1], tf.int64)
    several = tf.RaggedTensor.from_row_lengths(tf.zeros([2], tf.int64), [2])
    model(
        {"history": several, "hour": one, "movie_id": one, "genres": several, "year": tf.zeros([1])}
    )
    return model
