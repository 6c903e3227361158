"""Wide & Deep for clicks, as TF 2 programs write it: wide on Embedding layers of width 1, deep on
feature columns.

Source: Cheng et al., arXiv:1606.07792; Improved TensorFlow 2.7 Operations for Faster Recommenders
with NVIDIA, 2022.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# DenseFeatures is of Keras 2; read when TensorFlow is imported.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import tensorflow as tf

NUMBERS = tuple(f"n{number}" for number in range(1, 11))
TEN_HOT = 10


@dataclass(frozen=True)
class Sizes:
    """The sizes of the model.

    Attributes:
      rows: The number of rows of each category's table.
      hashed: Whether ids are any integers, which the model hashes; otherwise they are rows.
      dim: The width of the tables' rows.
      hidden: The widths of the hidden layers.
      ten_hot: The number of categories, at the end, that have ten ids in each example; the others
        have one.
    """

    rows: tuple[int, ...]
    hashed: bool
    dim: int
    hidden: tuple[int, ...]
    ten_hot: int = 3

    @property
    def categories(self) -> dict[str, int]:
        """The number of rows by the name of the category: c1, c2, ..."""
        return {f"c{number}": rows for number, rows in enumerate(self.rows, 1)}

    @property
    def ids(self) -> dict[str, int]:
        """The number of ids in an example, by the name of the category."""
        names = list(self.categories)
        counts = dict.fromkeys(names, 1)
        counts.update(dict.fromkeys(names[max(0, len(names) - self.ten_hot) :], TEN_HOT))
        return counts


def deep_columns(sizes: Sizes) -> list[Any]:
    """Returns a column for each number and, embedded, for each category."""
    column = tf.feature_column
    columns = [
        column.numeric_column(name, normalizer_fn=lambda count: tf.math.log1p(count) / 4)
        for name in NUMBERS
    ]
    for name, rows in sizes.categories.items():
        if sizes.hashed:
            category = column.categorical_column_with_hash_bucket(name, rows, tf.int64)
        else:
            category = column.categorical_column_with_identity(name, rows)
        columns.append(column.embedding_column(category, sizes.dim, combiner="mean"))
    return columns


class WideDeep(tf.keras.Model):  # type: ignore[misc]
    """Scores impressions of 10 numbers and as many categories as there are pairs of tables."""

    def __init__(self, sizes: Sizes) -> None:
        """Makes the layers."""
        super().__init__()
        self.sizes = sizes
        self.wide = {
            name: tf.keras.layers.Embedding(
                rows, 1, embeddings_initializer="zeros", name=f"wide_{name}"
            )
            for name, rows in sizes.categories.items()
        }
        self.deep_features = tf.keras.layers.DenseFeatures(deep_columns(sizes))
        self.deep = tf.keras.Sequential(
            [tf.keras.layers.Dense(units, "relu") for units in sizes.hidden]
        )
        self.deep_logit = tf.keras.layers.Dense(1)

    def call(self, features: dict[str, Any]) -> dict[str, Any]:
        """Computes the probability of a click, [b] float32.

        Args:
          features: The inputs by name: n1 ... n10, [b] float32; and the ids of each category,
            int64, [b], or [b, 10] for a category with ten ids.
        """
        logits = self.deep_logit(self.deep(self.deep_features(features)))[:, 0]
        return {
            "click": tf.sigmoid(
                logits + tf.add_n([self.wide_logit(name, features[name]) for name in self.wide])
            )
        }

    def wide_logit(self, name: str, ids: Any) -> Any:
        """Returns [b], the weight of a category's id, or the mean weight of its ten ids."""
        if self.sizes.hashed:
            ids = tf.strings.to_hash_bucket_fast(tf.as_string(ids), self.sizes.categories[name])
        weights = self.wide[name](ids)[..., 0]
        return tf.reduce_mean(weights, 1) if self.sizes.ids[name] > 1 else weights


def build_model() -> WideDeep:
    """Returns the untrained model in the sizes that the training wrote beside this file."""
    sizes = Sizes(**json.loads(Path(__file__).with_name("sizes.json").read_text()))
    model = WideDeep(sizes)
    shapes = {name: [1] if ids == 1 else [1, ids] for name, ids in model.sizes.ids.items()}
    ids = {name: tf.zeros(shape, tf.int64) for name, shape in shapes.items()}
    model({**{name: tf.zeros([1]) for name in NUMBERS}, **ids})
    return model
