"""One training loop for the examples that need no other, and what it reached."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from examples.columns import Columns, size, take, tensors


def adagrad(rate: float = 0.05) -> Any:
    """Returns the optimizer of tables and dense weights."""
    return tf.keras.optimizers.legacy.Adagrad(rate, initial_accumulator_value=0.1)


def fit(
    model: Any, optimizer: Any, loss_of: Callable[[Any, Any], Any], batches: Iterable[tuple[Columns, Columns]]
) -> None:
    """Trains a model.

    Args:
      model: called by `loss_of`.
      optimizer: of all its variables.
      loss_of: takes features and labels as tensors, returns a scalar.
      batches: features and labels.
    """

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
    def step(features: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(features, labels)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    start, losses = time.monotonic(), []
    for features, labels in batches:
        losses.append(step(tensors(features), tensors(labels)))
    values = np.array([float(loss) for loss in losses])
    tenth = max(1, len(values) // 10)
    print(
        f"{len(values)} steps, {time.monotonic() - start:.0f} s: loss {values[:tenth].mean():.4f}, "
        f"in the end {values[-tenth:].mean():.4f}"
    )


def shuffled(features: Columns, labels: Columns, batch: int, epochs: int = 1, seed: int = 1) -> Any:
    """Yields batches of examples in random order; what is left over of an epoch is not trained on."""
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
    m, n = int(positives.sum()), int((~positives).sum())
    return float((ranks[positives].sum() - m * (m + 1) / 2) / (m * n))
