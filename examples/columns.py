"""Values of n examples by input: in the form of a model's inputs, and as a caller sends them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Ragged:
    """Values of n examples, packed: example i owns values[offsets[i]:offsets[i + 1]]."""

    values: NDArray[Any]
    offsets: Ints

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, positions: Any) -> Any:
        """Returns the examples at `positions` [m], or the values of one example."""
        starts = self.offsets[:-1][positions]
        ends = self.offsets[1:][positions]
        if np.isscalar(starts):
            return self.values[starts:ends]
        return slices(self.values, starts, ends)


Column = NDArray[Any] | Ragged
"""[n, ...], or several values for each example."""
Columns = Mapping[str, Column]


def slices(values: NDArray[Any], starts: Ints, ends: Ints) -> Ragged:
    """Packs values[start:end] of each start and end."""
    lengths = ends - starts
    offsets = offsets_of(lengths)
    # The position of each value within its slice: 0, 1, ... for every slice.
    within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    return Ragged(values[np.repeat(starts, lengths) + within], offsets)


def offsets_of(lengths: NDArray[Any]) -> Ints:
    """Returns the offsets [n + 1] at which each example's values begin and end."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def take(columns: Columns, positions: Any) -> dict[str, Column]:
    """Returns the examples at `positions` [m]."""
    return {name: column[positions] for name, column in columns.items()}


def size(columns: Columns) -> int:
    """Returns the number of examples."""
    return len(next(iter(columns.values())))


def sent(columns: Columns, position: int) -> dict[str, Any]:
    """Returns the inputs of one example as JSON values."""
    return {name: column[position].tolist() for name, column in columns.items()}


def values(column: Column) -> list[Any]:
    """Returns one input of every example as JSON values."""
    if isinstance(column, Ragged):
        return [column[position].tolist() for position in range(len(column))]
    return list(column.tolist())


def tensors(columns: Columns) -> dict[str, Any]:
    """Returns the columns as the tensors of a model's inputs."""
    # Imported here: examples of JAX and PyTorch use this module without TensorFlow.
    import tensorflow as tf

    inputs = {}
    for name, column in columns.items():
        if isinstance(column, Ragged):
            inputs[name] = tf.RaggedTensor.from_row_splits(
                column.values, column.offsets, validate=False
            )
        else:
            inputs[name] = tf.constant(column)
    return inputs
