"""PLE for a feed: layers of shared and task experts behind gates, and a tower for each of three
tasks.

Source: Tang et al., Progressive Layered Extraction, RecSys 2020, figure 5 and equations 1 to 7.
"""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# TFRS speaks Keras 2; read when TensorFlow is imported.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import tensorflow as tf
import tensorflow_recommenders as tfrs

TASKS = ("click", "like", "watch")
CONTEXT = ("user_id", "history", "hour")
ITEM = ("item_id", "author_id", "tags")


@dataclass(frozen=True)
class Sizes:
    """Rows of each table, and the widths of the network."""

    users: int
    items: int
    authors: int
    tags: int
    dim: int
    experts: int
    """Experts of each task, and shared ones, in a layer."""
    widths: tuple[int, ...]
    """Of the experts of each layer."""
    tower: int


def feature_config(sizes: Sizes) -> dict[str, Any]:
    """Returns six features over five tables: what was watched and the item read the same one."""
    embedding = tf.tpu.experimental.embedding

    def table(name: str, rows: int, combiner: str = "mean") -> Any:
        initializer = tf.initializers.TruncatedNormal(stddev=0.1, seed=rows)
        return embedding.TableConfig(
            rows, sizes.dim, initializer=initializer, combiner=combiner, name=name
        )

    items = table("items", sizes.items)
    tables = {
        "user_id": table("users", sizes.users),
        "history": items,
        "hour": table("hours", 24),
        "item_id": items,
        "author_id": table("authors", sizes.authors),
        "tags": table("tags", sizes.tags, "sum"),
    }
    return {name: embedding.FeatureConfig(table=one, name=name) for name, one in tables.items()}


class Extraction(tf.keras.layers.Layer):  # type: ignore[misc]
    """One layer: each task's gate mixes its own experts and the shared ones; the shared gate mixes
    all.
    """

    def __init__(self, experts: int, width: int, last: bool) -> None:
        """Makes the layers.

        Args:
          experts: of each task, and shared.
          width: of what an expert returns.
          last: whether no layer follows that needs the shared mixture.
        """
        super().__init__()
        dense = tf.keras.layers.Dense
        self.of_tasks = [[dense(width, "relu") for _ in range(experts)] for _ in TASKS]
        self.shared = [dense(width, "relu") for _ in range(experts)]
        self.gates = [dense(2 * experts, "softmax") for _ in TASKS]
        self.shared_gate = None if last else dense((len(TASKS) + 1) * experts, "softmax")

    def call(self, of_tasks: list[Any], shared: Any) -> tuple[list[Any], Any]:
        """Returns a mixture [b, width] for each task, and the shared one, None of the
        last layer.
        """
        own = [
            [expert(one) for expert in experts]
            for experts, one in zip(self.of_tasks, of_tasks, strict=True)
        ]
        for_all = [expert(shared) for expert in self.shared]
        mixtures = [
            _mixed(gate(one), [*experts, *for_all])
            for gate, one, experts in zip(self.gates, of_tasks, own, strict=True)
        ]
        if self.shared_gate is None:
            return mixtures, None
        return mixtures, _mixed(self.shared_gate(shared), [*itertools.chain(*own), *for_all])


def _mixed(shares: Any, experts: list[Any]) -> Any:
    return tf.reduce_sum(tf.expand_dims(shares, -1) * tf.stack(experts, 1), 1)


class PLE(tf.keras.Model):  # type: ignore[misc]
    """Chances that an item of a feed is clicked and liked, and the share of it that is watched."""

    def __init__(self, sizes: Sizes, optimizer: Any = None) -> None:
        """Makes the layers; `optimizer` is that of the tables."""
        super().__init__()
        self.embedding = tfrs.layers.embedding.TPUEmbedding(feature_config(sizes), optimizer)
        self.user = tf.keras.layers.Dense(2 * sizes.dim, "relu")
        self.extractions = [
            Extraction(sizes.experts, width, last=place == len(sizes.widths) - 1)
            for place, width in enumerate(sizes.widths)
        ]
        self.towers = {task: tfrs.layers.blocks.MLP([sizes.tower, 1]) for task in TASKS}

    def call(self, features: dict[str, Any]) -> dict[str, Any]:
        """Computes click, like and watch, [b] float32 between 0 and 1.

        Args:
          features: user_id, hour, item_id, author_id [b]; history, tags ragged [b, None] (rows,
            int64); age [b] float32, of the item in days.
        """
        found = self.embedding({name: features[name] for name in (*CONTEXT, *ITEM)})
        user = self.user(tf.concat([found[name] for name in CONTEXT], 1))
        age = tf.expand_dims(tf.math.log1p(tf.maximum(features["age"], 0.0)), 1)
        shared = tf.concat(
            [user, *(found[name] for name in ITEM), found["history"] * found["item_id"], age], 1
        )
        of_tasks = [shared] * len(TASKS)
        for extraction in self.extractions:
            of_tasks, shared = extraction(of_tasks, shared)
        return {
            task: tf.reshape(tf.sigmoid(self.towers[task](one)), [-1])
            for task, one in zip(TASKS, of_tasks, strict=True)
        }


def build_model() -> PLE:
    """Returns the untrained model in the sizes that the training wrote beside this file."""
    page = json.loads(Path(__file__).with_name("sizes.json").read_text())
    model = PLE(Sizes(**page))
    one = tf.zeros([1], tf.int64)
    several = tf.RaggedTensor.from_row_lengths(tf.zeros([2], tf.int64), [2])
    inputs = dict.fromkeys(("user_id", "hour", "item_id", "author_id"), one) | dict.fromkeys(
        ("history", "tags"), several
    )
    model({**inputs, "age": tf.zeros([1])})
    return model
