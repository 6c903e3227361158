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

# TFRS needs Keras 2. TensorFlow reads the variable when it is imported.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import tensorflow as tf
import tensorflow_recommenders as tfrs

TASKS = ("click", "like", "watch")
CONTEXT = ("user_id", "history", "hour")
ITEM = ("item_id", "author_id", "tags")


@dataclass(frozen=True)
class Sizes:
    """Sizes of the model.

    Attributes:
      users: The number of rows of the table of users.
      items: The number of rows of the table of items.
      authors: The number of rows of the table of authors.
      tags: The number of rows of the table of tags.
      dim: The width of the tables.
      experts: The number of experts of each task, and of shared experts, in a layer.
      widths: The width of the experts of each layer.
      tower: The width of the hidden layer of each tower.
    """

    users: int
    items: int
    authors: int
    tags: int
    dim: int
    experts: int
    widths: tuple[int, ...]
    tower: int


def feature_config(sizes: Sizes) -> dict[str, Any]:
    """Returns six features over five tables: watched items and the item share a table."""
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
    return {name: embedding.FeatureConfig(table=table, name=name) for name, table in tables.items()}


class Extraction(tf.keras.layers.Layer):  # type: ignore[misc]
    """One layer: the gate of a task mixes the task's and the shared experts; the shared gate mixes
    all experts.
    """

    def __init__(self, experts: int, width: int, last: bool) -> None:
        """Creates the layers.

        Args:
          experts: The number of experts of each task, and of shared experts.
          width: The width of an expert's output.
          last: Whether no layer follows, which would need the shared mixture.
        """
        super().__init__()
        dense = tf.keras.layers.Dense
        self.of_tasks = [[dense(width, "relu") for _ in range(experts)] for _ in TASKS]
        self.shared = [dense(width, "relu") for _ in range(experts)]
        self.gates = [dense(2 * experts, "softmax") for _ in TASKS]
        self.shared_gate = None if last else dense((len(TASKS) + 1) * experts, "softmax")

    def call(self, of_tasks: list[Any], shared: Any) -> tuple[list[Any], Any]:
        """Returns a mixture for each task, [b, width], and the shared mixture, which is None in the
        last layer.
        """
        task_outputs = [
            [expert(task_input) for expert in experts]
            for experts, task_input in zip(self.of_tasks, of_tasks, strict=True)
        ]
        shared_outputs = [expert(shared) for expert in self.shared]
        mixtures = [
            _mixed(gate(task_input), [*experts, *shared_outputs])
            for gate, task_input, experts in zip(self.gates, of_tasks, task_outputs, strict=True)
        ]
        if self.shared_gate is None:
            return mixtures, None
        all_outputs = [*itertools.chain(*task_outputs), *shared_outputs]
        return mixtures, _mixed(self.shared_gate(shared), all_outputs)


def _mixed(shares: Any, experts: list[Any]) -> Any:
    return tf.reduce_sum(tf.expand_dims(shares, -1) * tf.stack(experts, 1), 1)


class PLE(tf.keras.Model):  # type: ignore[misc]
    """Predicts the probabilities of a click and a like, and the watched share of an item."""

    def __init__(self, sizes: Sizes, optimizer: Any = None) -> None:
        """Creates the layers; `optimizer` trains the tables."""
        super().__init__()
        self.embedding = tfrs.layers.embedding.TPUEmbedding(feature_config(sizes), optimizer)
        self.user = tf.keras.layers.Dense(2 * sizes.dim, "relu")
        self.extractions = [
            Extraction(sizes.experts, width, last=layer == len(sizes.widths) - 1)
            for layer, width in enumerate(sizes.widths)
        ]
        self.towers = {task: tfrs.layers.blocks.MLP([sizes.tower, 1]) for task in TASKS}

    def call(self, features: dict[str, Any]) -> dict[str, Any]:
        """Computes click, like and watch, [b] float32 between 0 and 1.

        Args:
          features: The inputs by name. Rows of tables, int64: user_id, hour, item_id and author_id,
            [b]; history and tags, ragged [b, None]. age, [b] float32, the age of the item in days.
        """
        embedded = self.embedding({name: features[name] for name in (*CONTEXT, *ITEM)})
        user = self.user(tf.concat([embedded[name] for name in CONTEXT], 1))
        age = tf.expand_dims(tf.math.log1p(tf.maximum(features["age"], 0.0)), 1)
        shared = tf.concat(
            [
                user,
                *(embedded[name] for name in ITEM),
                embedded["history"] * embedded["item_id"],
                age,
            ],
            1,
        )
        of_tasks = [shared] * len(TASKS)
        for extraction in self.extractions:
            of_tasks, shared = extraction(of_tasks, shared)
        return {
            task: tf.reshape(tf.sigmoid(self.towers[task](mixture)), [-1])
            for task, mixture in zip(TASKS, of_tasks, strict=True)
        }


def build_model() -> PLE:
    """Returns the untrained model in the sizes that the training wrote beside this file."""
    sizes = json.loads(Path(__file__).with_name("sizes.json").read_text())
    model = PLE(Sizes(**sizes))
    # Keras creates the variables of layers at the first call.
    single_id = tf.zeros([1], tf.int64)
    several = tf.RaggedTensor.from_row_lengths(tf.zeros([2], tf.int64), [2])
    inputs = dict.fromkeys(("user_id", "hour", "item_id", "author_id"), single_id) | dict.fromkeys(
        ("history", "tags"), several
    )
    model({**inputs, "age": tf.zeros([1])})
    return model
