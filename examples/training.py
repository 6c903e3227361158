"""The training loop of most examples in TensorFlow, and the quality that it reached."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from examples import requests
from examples.columns import Columns, size, take, tensors
from examples.criteo import Clicks


@dataclass(frozen=True)
class Optimizers:
    """The optimizers of a model. Their slot variables go into the checkpoint.

    Attributes:
      tables: Adagrad, for the embedding tables.
      dense: Adam, for all other variables.
    """

    tables: Any
    dense: Any

    def apply(
        self, gradients: Sequence[Any], variables: Sequence[Any], tables: Iterable[Any]
    ) -> None:
        """Applies the gradients of one step.

        Args:
          gradients: The gradients, one per variable.
          variables: All variables of the model.
          tables: The variables that are embedding tables.
        """
        # Variables have no hash, so sets of them need their identities.
        table_ids = {id(table) for table in tables}
        table_pairs = []
        dense_pairs = []
        for gradient, variable in zip(gradients, variables, strict=True):
            pairs = table_pairs if id(variable) in table_ids else dense_pairs
            pairs.append((gradient, variable))
        self.tables.apply_gradients(table_pairs)
        self.dense.apply_gradients(dense_pairs)


def optimizers(table_rate: float = 0.1, dense_rate: float = 0.002) -> Optimizers:
    """Returns new optimizers with these learning rates."""
    legacy = tf.keras.optimizers.legacy
    # Gradients of a row are small: larger accumulators would slow its first steps down.
    adagrad = legacy.Adagrad(table_rate, initial_accumulator_value=1e-6)
    return Optimizers(adagrad, legacy.Adam(dense_rate))


def fit(
    model: Any,
    optimizers: Optimizers,
    loss_of: Callable[[Any, Any], Any],
    batches: Iterable[tuple[Columns, Columns]],
) -> None:
    """Trains a model whose tables are those of its `embedding`, a TFRS layer.

    Args:
      model: The model that `loss_of` calls.
      optimizers: The optimizers of its variables.
      loss_of: A function from features and labels, as tensors, to a scalar.
      batches: Batches of features and labels.
    """

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
    def step(features: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(features, labels)
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        optimizers.apply(gradients, variables, model.embedding.embedding_tables.values())
        return loss

    start = time.monotonic()
    losses = []
    for features, labels in batches:
        losses.append(step(tensors(features), tensors(labels)))
    values = np.array([float(loss) for loss in losses])
    tenth = max(1, len(values) // 10)
    print(
        f"{len(values)} steps, {time.monotonic() - start:.0f} s: loss {values[:tenth].mean():.4f}, "
        f"in the end {values[-tenth:].mean():.4f}"
    )


def fit_clicks(model: Any, optimizers: Optimizers, data: Clicks, n: int, batch: int) -> None:
    """Trains a model that returns `click`, once over n impressions, and prints its AUC on further
    impressions.
    """
    features, clicks = data.impressions(n)
    cross_entropy = tf.keras.losses.BinaryCrossentropy()

    def loss_of(columns: Any, labels: Any) -> Any:
        return cross_entropy(labels["click"], model(columns)["click"])

    fit(model, optimizers, loss_of, shuffled(features, clicks, batch))
    held_out, clicked = data.impressions(n // 10)
    scores = requests.model_outputs(model, held_out, ["click"])["click"]
    print(f"AUC of {n // 10} held out: {area_under_curve(clicked['click'], scores):.3f}")


def shuffled(features: Columns, labels: Columns, batch: int, epochs: int = 1, seed: int = 1) -> Any:
    """Yields batches of examples in random order. The examples beyond the last whole batch of an
    epoch are left out.
    """
    random = np.random.default_rng(seed)
    for _ in range(epochs):
        order = random.permutation(size(features))
        for first in range(0, len(order) - batch + 1, batch):
            positions = order[first : first + batch]
            yield take(features, positions), take(labels, positions)


def area_under_curve(labels: NDArray[Any], scores: NDArray[Any]) -> float:
    """Returns the area under the ROC curve; ties count half.

    Source: Mann and Whitney's U over the numbers of positives and negatives.
    """
    _, groups, counts = np.unique(scores, return_inverse=True, return_counts=True)
    # Equal scores share the mean of their ranks, which start at 1.
    mean_ranks = np.cumsum(counts) - (counts - 1) / 2
    ranks = mean_ranks[groups]

    is_positive = labels > 0.5
    positives = int(is_positive.sum())
    negatives = int((~is_positive).sum())
    u = ranks[is_positive].sum() - positives * (positives + 1) / 2
    return float(u / (positives * negatives))
