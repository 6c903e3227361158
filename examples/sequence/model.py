"""Self-attention over the movies that a viewer watched last: a ranking as SASRec's, with a mask and
some context.

Source: Kang and McAuley, Self-Attentive Sequential Recommendation, arXiv:1808.09781.
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

FEATURES = ("history", "hour", "movie_id", "genres")


@dataclass(frozen=True)
class Sizes:
    """The sizes of the model.

    Attributes:
      movies: The number of rows of the movies' table.
      genres: The number of rows of the genres' table.
      dim: The width of the tables' rows.
      length: The number of movies of the history that the model reads, from its beginning: the
        newest.
      heads: The number of attention heads.
      blocks: The number of attention blocks.
      top: The widths of the hidden layers of the top network.
    """

    movies: int
    genres: int
    dim: int
    length: int
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
        """Creates the layers."""
        super().__init__()
        self.attention = tf.keras.layers.MultiHeadAttention(heads, dim // heads)
        self.norms = [tf.keras.layers.LayerNormalization() for _ in range(2)]
        self.dense = tfrs.layers.blocks.MLP([dim, dim])

    def call(self, sequence: Any, mask: Any) -> Any:
        """Lets every position of a sequence, [b, length, dim], attend to the positions in `mask`,
        [b, length].
        """
        attention = self.attention(sequence, sequence, attention_mask=mask[:, tf.newaxis, :])
        attended = self.norms[0](sequence + attention)
        return self.norms[1](attended + self.dense(attended))


class SequenceModel(tf.keras.Model):  # type: ignore[misc]
    """Predicts the probability that a movie is watched next."""

    def __init__(self, sizes: Sizes, optimizer: Any = None) -> None:
        """Creates the layers; `optimizer` trains the tables."""
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
          features: The inputs by name. Rows of tables, int64: history, ragged [b, None], the newest
            first; hour and movie_id, [b]; genres, ragged [b, None]. year, [b] float32.
        """
        embedded = self.embedding({name: features[name] for name in FEATURES})
        # The embedding layer cuts and pads histories to `length`.
        lengths = tf.minimum(features["history"].row_lengths(), self.length)
        mask = tf.sequence_mask(lengths, self.length)
        sequence = embedded["history"] + self.places
        for block in self.blocks:
            sequence = block(sequence, mask)
        is_id = tf.cast(mask, tf.float32)[:, :, tf.newaxis]
        # The mean over the history. An empty one has the mean 0.
        count = tf.maximum(tf.reduce_sum(is_id, 1), 1.0)
        viewer = tf.reduce_sum(sequence * is_id, 1) / count
        age = (tf.expand_dims(features["year"], 1) - 1990.0) / 20.0
        inputs = [
            viewer,
            embedded["hour"],
            embedded["movie_id"],
            embedded["genres"],
            viewer * embedded["movie_id"],
            age,
        ]
        logits = self.top_stack(tf.concat(inputs, 1))
        return {"watched": tf.reshape(tf.sigmoid(logits), [-1])}


def build_model() -> SequenceModel:
    """Returns the untrained model in the sizes that the training wrote beside this file."""
    sizes = Sizes(**json.loads(Path(__file__).with_name("sizes.json").read_text()))
    model = SequenceModel(sizes)
    # Keras creates the variables of layers at the first call.
    single_id = tf.zeros([1], tf.int64)
    several = tf.RaggedTensor.from_row_lengths(tf.zeros([2], tf.int64), [2])
    model(
        {
            "history": several,
            "hour": single_id,
            "movie_id": single_id,
            "genres": several,
            "year": tf.zeros([1]),
        }
    )
    return model
