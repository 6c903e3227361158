"""DCN v2 for click-through rates: crosses of full or low rank over embeddings, as in the TensorFlow
Model Garden.

Source: Wang et al., arXiv:2008.13535; TensorFlow Model Garden, official/recommendation/ranking.
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
      ids: The maximum number of ids of each category in an example; 1: exactly one id.
      dim: The width of the tables' rows.
      bottom: The widths of the hidden layers of the bottom network; a layer of `dim` follows.
      crosses: The number of cross layers.
      rank: The rank of the matrices in the cross layers; None: full matrices.
      top: The widths of the hidden layers of the top network.
    """

    rows: tuple[int, ...]
    ids: tuple[int, ...]
    dim: int
    bottom: tuple[int, ...]
    crosses: int
    rank: int | None
    top: tuple[int, ...]

    @property
    def categories(self) -> tuple[str, ...]:
        """The names of the categories: c1, c2, ..."""
        return tuple(f"c{number}" for number in range(1, len(self.rows) + 1))


def feature_config(sizes: Sizes) -> dict[str, Any]:
    """Returns one table for each category; several ids of a category are averaged."""
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


class FullCrosses(tf.keras.layers.Layer):  # type: ignore[misc]
    """x_{l+1} = x_0 * (W x_l + b) + x_l, each W of full rank."""

    def __init__(self, crosses: int) -> None:
        """Creates the layers."""
        super().__init__()
        self.crosses = [tfrs.layers.feature_interaction.Cross() for _ in range(crosses)]

    def call(self, features: Any) -> Any:
        """Crosses features, [b, width], with themselves, once per layer."""
        crossed = features
        for cross in self.crosses:
            crossed = cross(features, crossed)
        return crossed


class DCN(tf.keras.Model):  # type: ignore[misc]
    """Scores impressions of 13 numbers and as many categories as there are tables."""

    def __init__(self, sizes: Sizes, optimizer: Any = None) -> None:
        """Creates the layers; `optimizer` trains the tables."""
        super().__init__()
        self.sizes = sizes
        self.embedding = tfrs.layers.embedding.TPUEmbedding(feature_config(sizes), optimizer)
        self.bottom_stack = tfrs.layers.blocks.MLP(
            [*sizes.bottom, sizes.dim], final_activation="relu"
        )
        if sizes.rank is None:
            self.feature_interaction = FullCrosses(sizes.crosses)
        else:
            self.feature_interaction = tfrs.layers.feature_interaction.MultiLayerDCN(
                sizes.rank, sizes.crosses
            )
        self.top_stack = tfrs.layers.blocks.MLP([*sizes.top, 1])

    def call(self, features: dict[str, Any]) -> dict[str, Any]:
        """Computes the probability of a click; [b] float32.

        Args:
          features: The inputs by name: numbers, [b, 13] float32, counts as in the log; c1, c2, ...,
            int64 rows, [b], or ragged [b, None] where a category has several ids.
        """
        # Counts spread over orders of magnitude.
        numbers = self.bottom_stack(tf.math.log1p(tf.maximum(features["numbers"], 0.0)))
        categories = self.sizes.categories
        vectors = self.embedding({name: features[name] for name in categories})
        embedded = tf.concat([*(vectors[name] for name in categories), numbers], 1)
        logits = self.top_stack(tf.concat([numbers, self.feature_interaction(embedded)], 1))
        return {"click": tf.reshape(tf.sigmoid(logits), [-1])}


def build_model() -> DCN:
    """Returns the untrained model in the sizes that the training wrote beside this file."""
    sizes = Sizes(**json.loads(Path(__file__).with_name("sizes.json").read_text()))
    model = DCN(sizes)
    # Keras creates the variables of layers at the first call.
    several = tf.RaggedTensor.from_row_lengths(tf.zeros([2], tf.int64), [2])
    ids = {}
    for name, ids_max in zip(sizes.categories, sizes.ids, strict=True):
        ids[name] = tf.zeros([1], tf.int64) if ids_max == 1 else several
    model({"numbers": tf.zeros([1, NUMBERS]), **ids})
    return model
