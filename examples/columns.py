"""Values of n examples by input: what a model is called with, and what a caller sends of each."""

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
        """Returns the examples at `positions` [m]; of one position its values."""
        starts = self.offsets[:-1][positions]
        ends = self.offsets[1:][positions]
        return (
            self.values[starts:ends] if np.isscalar(starts) else slices(self.values, starts, ends)
        )


Column = NDArray[Any] | Ragged
"""[n, ...], or several values for each example."""
Columns = Mapping[str, Column]


def slices(values: NDArray[Any], starts: Ints, ends: Ints) -> Ragged:
    """Packs values[start:end] of each start and end."""
    offsets = offsets_of(ends - starts)
    within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], ends - starts)
    return Ragged(values[np.repeat(starts, ends - starts) + within], offsets)


def offsets_of(lengths: NDArray[Any]) -> Ints:
    """Returns [n + 1] where each example's values begin and end."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def take(columns: Columns, positions: Any) -> dict[str, Column]:
    """Returns the examples at `positions` [m]."""
    return {name: column[positions] for name, column in columns.items()}


def size(columns: Columns) -> int:
    """Returns the number of examples."""
    return len(next(iter(columns.values())))


def sent(columns: Columns, position: int) -> dict[str, Any]:
    """Returns what a caller sends for one example, as JSON holds it."""
    return {name: column[position].tolist() for name, column in columns.items()}


def values(column: Column) -> list[Any]:
    """Returns what a caller sends of every example, as JSON holds it."""
    if isinstance(column, Ragged):
        return [column[position].tolist() for position in range(len(column))]
    return list(column.tolist())


def tensors(columns: Columns) -> dict[str, Any]:
    """Returns the tensors that a model is called with; imports TensorFlow."""
    import tensorflow as tf

    return {
        name: tf.RaggedTensor.from_row_splits(column.values, column.offsets, validate=False)
        if isinstance(column, Ragged)
        else tf.constant(column)
        for name, column in columns.items()
    }
