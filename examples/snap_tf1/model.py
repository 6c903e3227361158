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

# DenseFeatures is of Keras 2; read when TensorFlow is imported.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import tensorflow.compat.v1 as tf

HEADS = ("conversion", "click")
SEEN = ("seen", "converted")
"""Ads that a user saw and converted on; they and the ad that is ranked share a table."""
SHARING = 20
"""Features of a kind that share a table: a user's interests."""


@dataclass(frozen=True)
class Sizes:
    """What the features are, and the widths of the network."""

    user: tuple[int, ...]
    """Rows of the table of each feature of a user: u0, u1, ..."""
    ad: tuple[int, ...]
    """Rows of the table of each feature of an ad: a0, a1, ..."""
    interests: int
    """Tables of interests, each of `SHARING` features of a user: i0, i1, ..."""
    interest_rows: int
    ads: int
    seen: int
    """Ads that a user's history holds, filled up with -1."""
    dim: int
    ad_dim: int
    crosses: int
    rank: int
    """Of the matrices in the cross layers."""
    hidden: tuple[int, ...]
    parts: int
    part_bytes_min: int
    """Tables are spread over at most so many parameter servers, in partitions of at least so many
    bytes.
    """

    @property
    def features(self) -> dict[str, int]:
        """Rows of each feature's table by name: first those of users, then those of ads."""
        users = {f"u{place}": rows for place, rows in enumerate(self.user)}
        interests = {f"i{place}": self.interest_rows for place in range(self.interests * SHARING)}
        ads = {f"a{place}": rows for place, rows in enumerate(self.ad)}
        return {**users, **interests, **dict.fromkeys(SEEN, self.ads), **ads, "ad": self.ads}

    @property
    def of_ads(self) -> tuple[str, ...]:
        """Names of the features of ads."""
        return (*(f"a{place}" for place in range(len(self.ad))), "ad")


def columns(sizes: Sizes) -> list[Any]:
    """Returns the embedding columns; those with exactly one id need no care for empty bags, which
    halves the graph.
    """
    embedding = tf.tpu.experimental
    category = {
        name: tf.feature_column.categorical_column_with_identity(name, rows, default_value=0)
        for name, rows in sizes.features.items()
        if name not in SEEN
    }
    for name in SEEN:  # bags, filled up with -1
        category[name] = tf.feature_column.categorical_column_with_identity(name, sizes.ads)
    own = [name for name in category if name[0] in "ua" and name[1:].isdigit()]
    made: list[Any] = [
        embedding.embedding_column(category[name], sizes.dim, use_safe_embedding_lookup=False)
        for name in own
    ]
    for place in range(sizes.interests):
        shared = [category[f"i{each}"] for each in range(place * SHARING, (place + 1) * SHARING)]
        made += embedding.shared_embedding_columns(
            shared,
            sizes.dim,
            shared_embedding_collection_name=f"interests_{place}",
            use_safe_embedding_lookup=False,
        )
    shown = [category[name] for name in (*SEEN, "ad")]
    return [
        *made,
        *embedding.shared_embedding_columns(
            shown, sizes.ad_dim, shared_embedding_collection_name="ads"
        ),
    ]


def cross(first: Any, last: Any, rank: int, name: str) -> Any:
    """Returns first * (U V last + b) + last, with matrices of low rank."""
    width = first.shape.as_list()[1]
    with tf.variable_scope(name):
        inner = tf.matmul(last, tf.get_variable("v", [width, rank]))
        outer = tf.matmul(inner, tf.get_variable("u", [rank, width]))
        return (
            first * (outer + tf.get_variable("bias", [width], initializer=tf.zeros_initializer()))
            + last
        )


def dense(inputs: Any, units: int, name: str) -> Any:
    """Returns a linear layer of the inputs."""
    with tf.variable_scope(name):
        kernel = tf.get_variable("kernel", [inputs.shape.as_list()[1], units])
        return tf.nn.xw_plus_b(
            inputs, kernel, tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
        )


def predictions(features: Mapping[str, Any], sizes: Sizes) -> dict[str, Any]:
    """Builds the graph that predicts; the chances of the heads, [b] float32.

    Args:
      features: [b] int64 of each, or [b, seen] of ads in a user's history.
      sizes: of the model.
    """
    servers = tf.min_max_variable_partitioner(sizes.parts, min_slice_size=sizes.part_bytes_min)
    with tf.variable_scope("ranker"):
        with tf.variable_scope("embeddings", partitioner=servers):
            first = tf.keras.layers.DenseFeatures(columns(sizes), name="features")(features)
        crossed = first
        for place in range(sizes.crosses):
            crossed = cross(first, crossed, sizes.rank, f"cross_{place}")
        hidden = crossed
        for place, units in enumerate(sizes.hidden):
            hidden = tf.nn.relu(dense(hidden, units, f"hidden_{place}"))
        tf.train.get_or_create_global_step()
        return {head: tf.sigmoid(dense(hidden, 1, head)[:, 0]) for head in HEADS}


def build_model() -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Returns what builds the graph in the sizes that the training wrote beside this file."""
    sizes = Sizes(**json.loads(Path(__file__).with_name("sizes.json").read_text()))
    return lambda features: predictions(features, sizes)
