"""The combiner, which makes one vector of the vectors of each bag. Export and service share it, so
that it is never written twice.

A bag adds its rows in float32, in the order the ids were sent, each times its weight; mean divides
by the sum of the weights, sqrtn by the root of the sum of their squares; an empty bag, or a divisor
of 0, gives zeros. The order of the additions depends on the bag alone, so an example's vector is
the same bits whatever else is in the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bundle.tables.offsets import Offsets, offsets_of

Weights = NDArray[np.float32]
Vectors = NDArray[np.float32]
Combiner = Literal["sum", "mean", "sqrtn"]

_CLIPPED_TOGETHER = 1024
"""The number of vectors that are clipped at a time, so that their copies stay in the cache."""
_NOTHING = np.float32(-0.0)
"""The number that a sum begins with: 0.0 would turn a bag of -0.0 into 0.0 in some of the branches
below, and not in others.
"""
_without_warnings = np.errstate(over="ignore", invalid="ignore")
"""Requests may send any finite weights, and tables may hold any values. A result beyond float32
becomes an infinity or NaN, as in compiled code; the service rejects it before it responds.
"""


@_without_warnings
def combine(
    vectors: Vectors,
    offsets: Offsets,
    combiner: Combiner,
    weights: Weights | None = None,
) -> Vectors:
    """Combines the vectors of each bag into one.

    Args:
      vectors: [m, dim] float32; overwritten if there are weights.
      offsets: [n + 1] int64: bag i owns vectors[offsets[i]:offsets[i + 1]].
      combiner: The combiner: sum, mean or sqrtn.
      weights: [m] float32; None: all 1.

    Returns:
      [n, dim] float32, C order.

    Source: TensorFlow 2.20, python/ops/embedding_ops.py and python/tpu/tpu_embedding_for_serving.py
    (the rules).
    """
    if weights is None and offsets.size == 2 and vectors.shape[1] > 1 and vectors.shape[0]:
        return _one_bag(vectors, combiner)
    if weights is not None:
        vectors *= weights[:, np.newaxis]
    sums = _segment_sums(vectors, offsets)
    if combiner == "sum":
        return sums
    if weights is None:
        divisors = (offsets[1:] - offsets[:-1]).astype(np.float32)[:, np.newaxis]
    else:
        summands = weights
        if combiner == "sqrtn":
            summands = weights * weights
        divisors = _segment_sums(summands[:, np.newaxis], offsets)
    if combiner == "sqrtn":
        divisors = np.sqrt(divisors)
    # Without a mask, NumPy divides faster.
    if divisors.all():
        return np.divide(sums, divisors, out=sums)
    return np.divide(sums, divisors, out=np.zeros_like(sums), where=divisors != 0)


def combine_rows(
    take: Callable[[NDArray[np.int64]], Vectors],
    rows: NDArray[np.int64],
    offsets: Offsets,
    combiner: Combiner,
    weights: Weights | None = None,
) -> Vectors:
    """Reads rows by `take` and combines them, without negative ones and their weights.

    Args:
      take: A function that returns [m, dim] float32 for [m] rows, which the caller may change.
      rows: [m] int64.
      offsets, combiner, weights: The same as for `combine`.

    Returns:
      [n, dim] float32, C order.
    """
    exists = rows >= 0
    if np.count_nonzero(exists) < exists.size:
        # The running count of existing rows turns old offsets into new ones.
        offsets = offsets_of(exists)[offsets]
        rows = rows[exists]
        if weights is not None:
            weights = weights[exists]
    return combine(take(rows), offsets, combiner, weights)


@_without_warnings
def combine_clipped(
    take: Callable[[NDArray[np.int64]], Vectors],
    max_norm: float,
    rows: NDArray[np.int64],
    offsets: Offsets,
    combiner: Combiner,
    weights: Weights | None = None,
) -> Vectors:
    """Does what `combine_rows` does with rows of which those that are longer than `max_norm` are
    scaled to that length.

    Args:
      take, rows, offsets, combiner, weights: As for `combine_rows`.
      max_norm: The largest L2 norm of a row, above 0.

    Returns:
      [n, dim] float32, C order.

    Source: TensorFlow 2.20, python/ops/clip_ops.py, clip_by_norm (the rule).
    """
    limit = np.float32(max_norm)

    def clipped(rows: NDArray[np.int64]) -> Vectors:
        vectors = take(rows)
        for first in range(0, len(vectors), _CLIPPED_TOGETHER):
            block = vectors[first : first + _CLIPPED_TOGETHER]
            norms = np.sqrt(np.sum(block * block, axis=1, keepdims=True))
            # Multiplied before divided, as TensorFlow does: the order decides the last bit.
            block *= limit
            block /= np.maximum(norms, limit)
        return vectors

    return combine_rows(clipped, rows, offsets, combiner, weights)


def with_empty_row(
    rows: NDArray[np.int64],
    offsets: Offsets,
    weights: Weights | None,
    empty_rows: NDArray[np.int64],
) -> tuple[NDArray[np.int64], Offsets, Weights | None]:
    """Leaves negative rows out of bags, and puts a row with weight 1 into those that have none
    then.

    Args:
      rows, offsets, weights: The same as for `combine_rows`.
      empty_rows: [n] int64, the row that each bag reads if it is empty.

    Returns:
      New rows, offsets and weights.

    Source: TensorFlow 2.20, python/ops/embedding_ops.py, safe_embedding_lookup_sparse with
    `default_id` (the rule).
    """
    exists = rows >= 0
    offsets = offsets_of(exists)[offsets]
    is_empty = offsets[:-1] == offsets[1:]
    starts = offsets[:-1][is_empty]
    filled_rows = np.insert(rows[exists], starts, empty_rows[is_empty])
    if weights is not None:
        weights = np.insert(weights[exists], starts, np.float32(1))
    return filled_rows, offsets_of(np.maximum(np.diff(offsets), 1)), weights


def _one_bag(vectors: Vectors, combiner: Combiner) -> Vectors:
    # The same additions and divisions as below, for the call of one example: a few numpy calls are
    # most of its time.
    sums: Vectors = np.add.reduce(vectors, axis=0, keepdims=True, initial=_NOTHING)
    if combiner == "sum":
        return sums
    divisor = np.float32(vectors.shape[0])
    if combiner == "sqrtn":
        divisor = np.sqrt(divisor)
    return np.divide(sums, divisor, out=sums)


def _segment_sums(values: Vectors, offsets: Offsets) -> Vectors:
    # All branches add up the values of a bag in their order. They differ in what one numpy call
    # spans: the j-th value of every bag, or the whole of one bag. np.add.reduceat is slower than
    # both and adds long bags pairwise.
    lengths = offsets[1:] - offsets[:-1]
    n = lengths.size
    dim = values.shape[1]
    longest = int(np.maximum.reduce(lengths, initial=0))
    if longest == 1 and values.shape[0] == n:
        return values
    sums = np.zeros((n, dim), np.float32)
    if longest > n:
        for bag in np.flatnonzero(lengths):
            bag_values = values[offsets[bag] : offsets[bag + 1]]
            if dim > 1:
                sums[bag] = np.add.reduce(bag_values, axis=0, initial=_NOTHING)
            else:
                # One column would be added pairwise by reduce, so that its bits would depend on the
                # branch.
                sums[bag] = np.add.accumulate(bag_values, axis=0)[-1]
    elif values.shape[0] == n * longest:
        blocks = values.reshape(n, longest, dim)
        for j in range(longest):
            if j:
                np.add(sums, blocks[:, j], out=sums)
            else:
                # Not added to zeros: the sum of 0.0 and -0.0 is 0.0.
                sums = blocks[:, 0].copy()
    else:
        longest_first = np.argsort(-lengths, kind="stable")
        starts = offsets[:-1][longest_first]
        counts = n - np.cumsum(np.bincount(lengths))  # counts[j]: bags that have a j-th value
        ordered = np.zeros((n, dim), np.float32)
        for j, count in enumerate(counts[:longest].tolist()):
            jth_values = values.take(starts[:count] + j, axis=0)
            if j:
                np.add(ordered[:count], jth_values, out=jth_values)
            ordered[:count] = jth_values
        sums[longest_first] = ordered
    return sums
