"""DLRM for click-through rates: bottom MLP, dot interaction, top MLP, as in the TensorFlow Model
Garden.

Source: Naumov et al., arXiv:1906.00091; TensorFlow Model Garden, official/recommendation/ranking.
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

NUMBERS = 13


@dataclass(frozen=True)
class Sizes:
    """The sizes of the model.

    Attributes:
      rows: The number of rows of each category's table.
      dim: The width of the tables' rows.
      bottom: The widths of the hidden layers of the bottom network; a layer of `dim` follows.
      top: The widths of the hidden layers of the top network.
    """

    rows: tuple[int, ...]
    dim: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]

    @property
    def categories(self) -> tuple[str, ...]:
        """The names of the categories: c1, c2, ..."""
        return tuple(f"c{number}" for number in range(1, len(self.rows) + 1))


def feature_config(sizes: Sizes) -> dict[str, Any]:
    """Returns one table for each category."""
    embedding = tf.tpu.experimental.embedding
    config = {}
    for name, rows in zip(sizes.categories, sizes.rows, strict=True):
        initializer = tf.initializers.VarianceScaling(
            mode="fan_out", distribution="uniform", seed=rows
        )
        table = embedding.TableConfig(
            rows, sizes.dim, initializer=initializer, combiner="mean", name=f"table_{name}"
        )
        config[name] = embedding.FeatureConfig(table=table, name=name)
    return config


class DLRM(tf.keras.Model):  # type: ignore[misc]
    """Scores impressions of 13 numbers and as many categories as there are tables."""

    def __init__(self, sizes: Sizes, optimizer: Any = None) -> None:
        """Creates the layers; `optimizer` trains the tables."""
        super().__init__()
        self.categories = sizes.categories
        self.embedding = tfrs.layers.embedding.TPUEmbedding(feature_config(sizes), optimizer)
        self.bottom_stack = tfrs.layers.blocks.MLP(
            [*sizes.bottom, sizes.dim], final_activation="relu"
        )
        self.feature_interaction = tfrs.layers.feature_interaction.DotInteraction()
        self.top_stack = tfrs.layers.blocks.MLP([*sizes.top, 1])

    def call(self, features: dict[str, Any]) -> dict[str, Any]:
        """Computes the probability of a click; [b] float32.

        Args:
          features: The inputs by name: numbers, [b, 13] float32, counts as in the log; c1, c2, ...,
            [b] int64, rows.
        """
        numbers = self.bottom_stack(tf.math.log1p(tf.maximum(features["numbers"], 0.0)))
        embedded = self.embedding({name: features[name] for name in self.categories})
        interactions = self.feature_interaction(
            [*(embedded[name] for name in self.categories), numbers]
        )
        logits = self.top_stack(tf.concat([numbers, interactions], 1))
        return {"click": tf.reshape(tf.sigmoid(logits), [-1])}


def build_model() -> DLRM:
    """Returns the untrained model in the sizes that the training wrote beside this file."""
    sizes = Sizes(**json.loads(Path(__file__).with_name("sizes.json").read_text()))
    model = DLRM(sizes)
    # Keras creates the variables of layers at the first call.
    ids = dict.fromkeys(model.categories, tf.zeros([1], tf.int64))
    model({"numbers": tf.zeros([1, NUMBERS]), **ids})
    return model
