"""Batches, the training loop and the checkpoint of the examples in JAX."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp

from examples.columns import Columns, size, take


def shuffled(columns: Columns, batch: int, epochs: int = 1) -> Iterator[dict[str, Any]]:
    """Yields batches of examples in random order. The examples beyond the last whole batch of an
    epoch are left out.
    """
    random = np.random.default_rng(1)
    for _ in range(epochs):
        order = random.permutation(size(columns))
        for first in range(0, len(order) - batch + 1, batch):
            yield take(columns, order[first : first + batch])


def fit(
    parameters: Any,
    optimizer: optax.GradientTransformation,
    loss_of: Callable[[Any, Any], Any],
    batches: Iterable[Any],
) -> dict[str, Any]:
    """Trains parameters, and prints how the loss fell.

    Args:
      parameters: A tree of arrays.
      optimizer: The optimizer of the parameters.
      loss_of: A function from parameters and a batch to the mean loss.
      batches: The batches to train on.

    Returns:
      The trained parameters, and the optimizer's state as it would be saved with them.
    """
    state = optimizer.init(parameters)

    @jax.jit
    def step(parameters: Any, state: Any, batch: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(parameters, batch)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(parameters, updates), state, loss

    start = time.monotonic()
    losses = []
    for batch in batches:
        parameters, state, loss = step(parameters, state, batch)
        losses.append(float(loss))
    seconds = time.monotonic() - start
    print(
        f"{len(losses)} steps, {seconds:.0f} s: loss {losses[0]:.4f}, in the end {losses[-1]:.4f}"
    )
    return {"params": parameters, "opt_state": state}


def save(out: Path, state: Any) -> None:
    """Writes the checkpoint."""
    # Orbax takes absolute paths alone.
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save((out / "checkpoint").resolve(), state)
