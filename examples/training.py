"""One training loop for the examples that need no other, and what it reached."""

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
    """What trains a model: Adagrad its tables, Adam all else; slot variables go into the
    checkpoint.
    """

    tables: Any
    dense: Any

    def apply(
        self, gradients: Sequence[Any], variables: Sequence[Any], tables: Iterable[Any]
    ) -> None:
        """Applies the gradients of one step; `tables` are those of the variables that are embedding
        tables.
        """
        of_tables = {id(table) for table in tables}
        pairs = list(zip(gradients, variables, strict=True))
        self.tables.apply_gradients([pair for pair in pairs if id(pair[1]) in of_tables])
        self.dense.apply_gradients([pair for pair in pairs if id(pair[1]) not in of_tables])


def optimizers(table_rate: float = 0.1, dense_rate: float = 0.002) -> Optimizers:
    """Returns new ones; Adagrad begins with small accumulators, since the gradients of
    a row are.
    """
    legacy = tf.keras.optimizers.legacy
    return Optimizers(
        legacy.Adagrad(table_rate, initial_accumulator_value=1e-6), legacy.Adam(dense_rate)
    )


def fit(
    model: Any,
    optimizers: Optimizers,
    loss_of: Callable[[Any, Any], Any],
    batches: Iterable[tuple[Columns, Columns]],
) -> None:
    """Trains a model whose tables are those of its `embedding`, a TFRS layer.

    Args:
      model: called by `loss_of`.
      optimizers: of its variables.
      loss_of: takes features and labels as tensors, returns a scalar.
      batches: features and labels.
    """

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
    def step(features: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(features, labels)
        variables = model.trainable_variables
        optimizers.apply(
            tape.gradient(loss, variables), variables, model.embedding.embedding_tables.values()
        )
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
    """Trains a model that returns `click`, once over n impressions, and tells its AUC on others."""
    features, clicks = data.impressions(n)
    cross_entropy = tf.keras.losses.BinaryCrossentropy()

    def loss_of(columns: Any, labels: Any) -> Any:
        return cross_entropy(labels["click"], model(columns)["click"])

    fit(model, optimizers, loss_of, shuffled(features, clicks, batch))
    held_out, clicked = data.impressions(n // 10)
    reached = requests.answers(model, held_out, ["click"])["click"]
    print(f"AUC of {n // 10} held out: {area_under_curve(clicked['click'], reached):.3f}")


def shuffled(features: Columns, labels: Columns, batch: int, epochs: int = 1, seed: int = 1) -> Any:
    """Yields batches of examples in random order; what is left over of an epoch is not
    trained on.
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
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    positives = labels > 0.5
    m = int(positives.sum())
    n = int((~positives).sum())
    return float((ranks[positives].sum() - m * (m + 1) / 2) / (m * n))
