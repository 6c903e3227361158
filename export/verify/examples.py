"""Examples that towers are compared on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.features.reader import Column
from bundle.tables.offsets import chosen_bags, offsets_of
from export.front_end.specs import DenseSpec, ModelSpec
from rows.cells import joined_values


@dataclass(frozen=True)
class Examples:
    """`n` examples by input; an input without a column takes its default.

    Attributes:
      n: The number of examples.
      columns: The values of all examples, by input.
      labels: [n] int64 of 0 and 1, the labels of outputs that have some.
      recorded: [n, ...] float64, the values that training recorded of outputs.
      with_known_ids: Synthetic examples without the ids that no table has, which a model may
        reject; None: these are real examples, or have no such ids.
    """

    n: int
    columns: Mapping[str, Column]
    labels: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    recorded: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    with_known_ids: Examples | None = None


def without_signs(examples: Examples, model: ModelSpec) -> Examples:
    """Returns examples with the absolute value of each number that a tower takes."""
    columns = dict(examples.columns)
    for name, column in examples.columns.items():
        is_number = any(
            isinstance(spec, DenseSpec) and spec.entry.take == "values"
            for spec in model.inputs[name]
        )
        if is_number:
            columns[name] = column._replace(values=np.abs(column.values))
    return replace(examples, columns=columns)


def chosen(column: Column, rows: NDArray[np.int64], n: int) -> Column:
    """Returns the values of some of n examples, in another order, or several times.

    Args:
      column: The values of all examples.
      rows: [m] positions of the examples.
      n: The number of all examples.
    """
    offsets = column.offsets
    if offsets is None:
        # Without offsets, each example has the same number of values.
        offsets = np.arange(n + 1) * (column.values.size // n)
    positions, chosen_offsets = chosen_bags(offsets, rows)
    column = column._replace(values=column.values[positions])
    if column.offsets is not None:
        column = column._replace(offsets=chosen_offsets)
    if column.weights is not None:
        column = column._replace(weights=column.weights[positions])
    return column


def chosen_columns(
    columns: Mapping[str, Column], rows: NDArray[np.int64], n: int
) -> dict[str, Column]:
    """Returns the values of some of n examples in all inputs, as `chosen` does."""
    return {name: chosen(column, rows, n) for name, column in columns.items()}


def chosen_values(
    values: Mapping[str, NDArray[Any]], rows: NDArray[Any] | slice
) -> dict[str, NDArray[Any]]:
    """Returns the rows of some examples in several arrays of [n, ...]."""
    return {name: array[rows] for name, array in values.items()}


def joined(columns: Sequence[Column], counts: Sequence[int]) -> Column:
    """Returns the values of the examples of several columns of one input, one after the other.

    Args:
      columns: The columns. Without weights, all weights of a column are 1.
      counts: The number of examples of each.
    """
    offsets = None
    if any(column.offsets is not None for column in columns):
        sizes = []
        for column, count in zip(columns, counts, strict=True):
            if column.offsets is None:
                sizes.append(np.full(count, column.values.size // count))
            else:
                sizes.append(np.diff(column.offsets))
        offsets = offsets_of(np.concatenate(sizes))
    weights = None
    if any(column.weights is not None for column in columns):
        parts = []
        for column in columns:
            if column.weights is None:
                parts.append(np.ones(column.values.size, np.float32))
            else:
                parts.append(column.weights)
        weights = np.concatenate(parts)
    return Column(joined_values([column.values for column in columns]), offsets, weights)
