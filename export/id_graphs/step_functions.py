"""Finds rows that are a step function of one number, by computing them: wherever the rows of two
numbers differ, bisection finds the neighboring numbers between which they change.

So a bundle reads the rows of whatever computes them, to the last bit: the logarithms of two
frameworks, and their casts of large numbers, are not the same functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.format.graph_builder import GraphBuilder
from bundle.format.id_graphs import CONSTANT_MAX, GraphIds, InputDtype
from export.graphs.number_keys import Keys, Numbers, keys_of, numbers_of

Rows = NDArray[np.int64]
ComputeRows = Callable[[Numbers], Rows]
"""[m] numbers -> [m] rows."""

PACKET = 64
"""A multiple of the number of values that one instruction computes. TensorFlow computes the last
values of an array by other instructions than whole packets, and the last bit of a logarithm with
them.
"""
_SPREAD = 1 << 14
"""The number of keys, spread over all of a type, that are computed first, and others in the end."""
_NEIGHBORS = 64
"""The number of keys on each side of a step that are computed, too: near a step, a logarithm may
switch back and forth between two rows.
"""
_NEAR_MAX = 1 << 17
"""How many of these neighbors are computed on each side of all steps."""
_ROUNDS = 4
"""How often the neighbors of steps may show further steps."""


@dataclass(frozen=True)
class StepFunction:
    """Rows as a function of the numbers of one type.

    Attributes:
      dtype: int32, int64 or float32.
      steps: [m] numbers at which another row begins, ascending.
      rows: [m + 1] rows before, between and behind the steps.
    """

    dtype: InputDtype
    steps: Numbers
    rows: Rows

    def of(self, numbers: Numbers) -> Rows:
        """Returns the rows of finite numbers."""
        return self.rows[np.searchsorted(self.steps, numbers, side="right")]

    def beside_steps(self) -> Numbers:
        """Returns the numbers on both sides of each step, ascending."""
        keys = keys_of(self.steps)
        return numbers_of(np.union1d(keys - 1, keys), self.dtype)

    def graph(self, offset: int = 0) -> GraphIds | None:
        """Returns the function as a graph of ids; None if no graph expresses it.

        Args:
          offset: An integer to be added to all rows.
        """
        boundaries = self.steps.astype(np.float32)
        below = numbers_of(keys_of(self.steps) - 1, self.dtype).astype(np.float32)
        # Buckets compare integers as float32, in which two neighbors may be one number.
        if not 0 < boundaries.size < CONSTANT_MAX or (below == boundaries).any():
            return None
        builder = GraphBuilder(self.dtype)
        number = builder.last
        rows = (self.rows + offset).tolist()
        changes = np.diff(self.rows)
        if (changes == 1).all():
            builder.buckets(number, boundaries.tolist(), rows[0])
        elif (changes == -1).all():
            counts = builder.buckets(number, boundaries.tolist())
            builder.compute("Sub", builder.constant(rows[0]), counts)
        else:
            listed = builder.constants(rows)
            bucket = builder.compute("Bucketize", number, boundaries=boundaries.tolist())
            builder.compute("GatherV2", listed, bucket)
        return builder.graph()


def monotonic_steps(compute: ComputeRows, dtype: InputDtype, turns: Numbers) -> StepFunction | None:
    """Returns rows that only rise, or only fall, between some numbers as a step function.

    Where rows switch back and forth within a few numbers, one of these is the step.

    Args:
      compute: Computes the rows.
      dtype: The type of the numbers: int32, int64 or float32.
      turns: The numbers, with the ends of the type among them.

    Returns:
      The function; None if it has more steps than a graph may have.
    """

    rows_of_keys = partial(_rows_of_keys, compute, dtype)
    keys = np.unique(keys_of(turns))
    rows = rows_of_keys(keys)
    step_keys = _bisect(rows_of_keys, keys, rows)
    if step_keys is None:
        return None
    rows_behind = rows_of_keys(step_keys)
    return StepFunction(
        dtype, numbers_of(step_keys, dtype), np.concatenate([rows[:1], rows_behind])
    )


def find_steps(compute: ComputeRows, dtype: InputDtype, numbers: Numbers) -> StepFunction | None:
    """Returns rows as a step function of a number.

    Args:
      compute: Computes the rows.
      dtype: The type of the numbers: int32, int64 or float32.
      numbers: Numbers between which steps are searched, such as hostile ones; only finite ones,
        since a service rejects others.

    Returns:
      The function, by which the rows of all numbers that were computed are right; None if the rows
      have more steps than a graph may have, or change where no search finds it.
    """
    first, last = keys_of(ends_of(dtype)).tolist()
    rows_of_keys = partial(_rows_of_keys, compute, dtype)

    def spread(offset: int) -> Keys:
        stride = (last - first) // _SPREAD
        return np.array([first + stride * index + offset for index in range(_SPREAD)], np.int64)

    finite = numbers[np.isfinite(numbers)]
    keys = np.unique(np.concatenate([keys_of(finite), spread(0), [first, last]]))
    rows = rows_of_keys(keys)
    for _ in range(_ROUNDS):
        step_keys = _bisect(rows_of_keys, keys, rows)
        if step_keys is None:
            return None
        neighbors = min(_NEIGHBORS, _NEAR_MAX // (step_keys.size + 1))
        offsets = np.arange(-neighbors, neighbors + 1)
        # Clipped before they are added, since the ends of int64 would wrap around.
        inside = np.clip(step_keys, first + neighbors, last - neighbors)
        near = np.unique(np.add.outer(inside, offsets))
        new_keys = np.setdiff1d(np.union1d(near, step_keys), keys)
        keys = np.concatenate([keys, new_keys])
        rows = np.concatenate([rows, rows_of_keys(new_keys)])
        order = np.argsort(keys)
        keys = keys[order]
        rows = rows[order]
        changes = np.flatnonzero(np.diff(rows)) + 1
        if (keys[changes] - keys[changes - 1] == 1).all():
            break
    else:
        return None

    function = StepFunction(
        dtype, numbers_of(keys[changes], dtype), np.concatenate([rows[:1], rows[changes]])
    )
    tested = numbers_of(spread((last - first) // _SPREAD // 3), dtype)
    if (compute(tested) != function.of(tested)).any():
        return None
    return function


def _rows_of_keys(compute: ComputeRows, dtype: InputDtype, keys: Keys) -> Rows:
    if not keys.size:
        return np.empty(0, np.int64)
    return compute(numbers_of(keys, dtype))


def ends_of(dtype: str) -> Numbers:
    """Returns the smallest and the largest finite number of a type."""
    limits: Any = np.finfo(np.float32)
    if dtype != "float32":
        limits = np.iinfo(dtype)
    return np.array([limits.min, limits.max], dtype)


def _bisect(rows_of_keys: Callable[[Keys], Rows], keys: Keys, rows: Rows) -> Keys | None:
    """Returns the keys at which rows change, as far as the rows of ascending keys show it; None if
    there are too many.
    """
    changes = np.flatnonzero(np.diff(rows))
    low = keys[changes]
    high = keys[changes + 1]
    low_rows = rows[changes]
    high_rows = rows[changes + 1]
    finished: list[Keys] = []
    # All intervals at once: as many rounds as numbers have bits.
    while low.size:
        # The distance between the ends of int64 is no int64.
        distance = high.astype(np.uint64) - low.astype(np.uint64)
        is_step = distance == 1
        finished.append(high[is_step])
        is_open = ~is_step
        low, high, low_rows, high_rows = (
            array[is_open] for array in (low, high, low_rows, high_rows)
        )
        middle = low + (distance[is_open] // 2).astype(np.int64)
        middle_rows = rows_of_keys(middle)
        in_lower = middle_rows != low_rows
        in_upper = middle_rows != high_rows
        low = np.concatenate([low[in_lower], middle[in_upper]])
        high = np.concatenate([middle[in_lower], high[in_upper]])
        low_rows = np.concatenate([low_rows[in_lower], middle_rows[in_upper]])
        high_rows = np.concatenate([middle_rows[in_lower], high_rows[in_upper]])
        if low.size + sum(part.size for part in finished) > CONSTANT_MAX:
            return None
    return np.unique(np.concatenate([np.empty(0, np.int64), *finished]))
