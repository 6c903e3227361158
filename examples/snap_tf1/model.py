"""An ad ranker of TF1: thousands of features through TPU embedding columns, cross layers, two
heads.

Source: Snap, Training Large-Scale Recommendation Models with TPUs, 2022; Wang et al., DCN V2,
arXiv:2008.13535.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# DenseFeatures exists in Keras 2 only. TensorFlow reads the variable when it is imported.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import tensorflow.compat.v1 as tf

HEADS = ("conversion", "click")
SEEN = ("seen", "converted")
"""Features with the ads that a user saw and converted on: they share the ranked ad's table."""
SHARING = 20
"""Number of interests of a user that share a table."""


@dataclass(frozen=True)
class Sizes:
    """The features, and the widths of the network.

    Attributes:
      user: The number of rows of each feature of a user: u0, u1, ...
      ad: The number of rows of each feature of an ad: a0, a1, ...
      interests: The number of tables of interests, each shared by `SHARING` features of a user:
        i0, i1, ...
      interest_rows: The number of rows of each table of interests.
      ads: The number of ads.
      seen: The length of a history of ads, which -1 fills up.
      dim: The width of the tables of users and ads' features.
      ad_dim: The width of the table of ads.
      crosses: The number of cross layers.
      rank: The rank of the matrices in the cross layers.
      hidden: The widths of the hidden layers.
      parts: The maximum number of parameter servers over which a table is spread.
      part_bytes_min: The minimum size of a partition of a table.
    """

    user: tuple[int, ...]
    ad: tuple[int, ...]
    interests: int
    interest_rows: int
    ads: int
    seen: int
    dim: int
    ad_dim: int
    crosses: int
    rank: int
    hidden: tuple[int, ...]
    parts: int
    part_bytes_min: int

    @property
    def features(self) -> dict[str, int]:
        """The number of rows of each feature's table by name: users' features, then ads'."""
        users = {f"u{number}": rows for number, rows in enumerate(self.user)}
        interests = {f"i{number}": self.interest_rows for number in range(self.interests * SHARING)}
        ads = {f"a{number}": rows for number, rows in enumerate(self.ad)}
        return {**users, **interests, **dict.fromkeys(SEEN, self.ads), **ads, "ad": self.ads}

    @property
    def ad_names(self) -> tuple[str, ...]:
        """The names of the features of ads."""
        return (*(f"a{number}" for number in range(len(self.ad))), "ad")


def columns(sizes: Sizes) -> list[Any]:
    """Returns the embedding columns."""
    embedding = tf.tpu.experimental
    category = {
        name: tf.feature_column.categorical_column_with_identity(name, rows, default_value=0)
        for name, rows in sizes.features.items()
        if name not in SEEN
    }
    # Bags of ads have no default: -1 fills them up, and is left out.
    for name in SEEN:
        category[name] = tf.feature_column.categorical_column_with_identity(name, sizes.ads)
    single_names = [name for name in category if name[0] in "ua" and name[1:].isdigit()]
    # Features with exactly one id need no safe lookup, which handles empty bags. That halves the
    # graph.
    single_columns: list[Any] = [
        embedding.embedding_column(category[name], sizes.dim, use_safe_embedding_lookup=False)
        for name in single_names
    ]
    for group in range(sizes.interests):
        shared = [
            category[f"i{number}"] for number in range(group * SHARING, (group + 1) * SHARING)
        ]
        single_columns += embedding.shared_embedding_columns(
            shared,
            sizes.dim,
            shared_embedding_collection_name=f"interests_{group}",
            use_safe_embedding_lookup=False,
        )
    ad_columns = [category[name] for name in (*SEEN, "ad")]
    return [
        *single_columns,
        *embedding.shared_embedding_columns(
            ad_columns, sizes.ad_dim, shared_embedding_collection_name="ads"
        ),
    ]


def cross(first: Any, last: Any, rank: int, name: str) -> Any:
    """Returns first * (U V last + b) + last, with matrices of low rank."""
    width = first.shape.as_list()[1]
    with tf.variable_scope(name):
        inner = tf.matmul(last, tf.get_variable("v", [width, rank]))
        outer = tf.matmul(inner, tf.get_variable("u", [rank, width]))
        bias = tf.get_variable("bias", [width], initializer=tf.zeros_initializer())
        return first * (outer + bias) + last


def dense(inputs: Any, units: int, name: str) -> Any:
    """Returns a linear layer of the inputs."""
    with tf.variable_scope(name):
        kernel = tf.get_variable("kernel", [inputs.shape.as_list()[1], units])
        bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
        return tf.nn.xw_plus_b(inputs, kernel, bias)


def predictions(features: Mapping[str, Any], sizes: Sizes) -> dict[str, Any]:
    """Builds the graph of the model; returns the probability of each head's event, [b] float32.

    Args:
      features: The ids of each feature, [b] int64; histories of ads, [b, seen].
      sizes: The sizes of the model.
    """
    servers = tf.min_max_variable_partitioner(sizes.parts, min_slice_size=sizes.part_bytes_min)
    with tf.variable_scope("ranker"):
        with tf.variable_scope("embeddings", partitioner=servers):
            first = tf.keras.layers.DenseFeatures(columns(sizes), name="features")(features)
        crossed = first
        for layer in range(sizes.crosses):
            crossed = cross(first, crossed, sizes.rank, f"cross_{layer}")
        hidden = crossed
        for layer, units in enumerate(sizes.hidden):
            hidden = tf.nn.relu(dense(hidden, units, f"hidden_{layer}"))
        tf.train.get_or_create_global_step()
        return {head: tf.sigmoid(dense(hidden, 1, head)[:, 0]) for head in HEADS}


def build_model() -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Returns a function that builds the graph, in the sizes that the training wrote beside this
    file.
    """
    sizes = Sizes(**json.loads(Path(__file__).with_name("sizes.json").read_text()))
    return lambda features: predictions(features, sizes)
