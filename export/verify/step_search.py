"""Finds steps of a function of one number: its results jump between two neighboring numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.int64]
Results = NDArray[np.float64]

_SMOOTH_ROUNDS = 8
"""The number of halvings after which a smooth function changes by 2^-8 of what it changed between
the ends of an interval.
"""
_STEP_SHARE = 2.0**-6
"""The share of the change between the ends that is left of a step by then."""
_ROUNDS_MAX = 64


def find_steps(results_of: Callable[[Keys], Results], keys: Keys) -> tuple[Keys, Keys]:
    """Looks for one step in each interval between two keys.

    An interval is halved to where a result changes by more, until its ends are neighbors. In a
    smooth function, the change shrinks with the interval, which is then given up.

    Args:
      results_of: Returns [m, d] results of [m] keys, all finite.
      keys: [n] integers that number the values of the function's argument in order, ascending.

    Returns:
      [s] the last key before each step, and [s] the key behind it.
    """
    results = results_of(keys)
    # The low ends and the high ones, [2, m], and their results, [2, m, d].
    ends = np.stack([keys[:-1], keys[1:]])
    end_results = np.stack([results[:-1], results[1:]])
    # A result that does not change between the first ends shows no step.
    first_changes = np.abs(np.diff(results, axis=0))
    first_changes[first_changes == 0] = np.inf

    def shares(low_results: Results, high_results: Results) -> NDArray[np.float64]:
        """Returns [m] the largest change between two results, as a share of the first change: a
        result of large numbers hides no other one.
        """
        largest: NDArray[np.float64] = (np.abs(high_results - low_results) / first_changes).max(
            axis=1, initial=0.0
        )
        return largest

    for halvings in range(_ROUNDS_MAX):
        share = 0.0
        if halvings >= _SMOOTH_ROUNDS:
            share = _STEP_SHARE
        changed = shares(*end_results) > share
        ends = ends[:, changed]
        end_results = end_results[:, changed]
        first_changes = first_changes[changed]
        low, high = ends
        if not np.any(high - low > 1):
            break
        middle = low + (high - low) // 2
        results = results_of(middle)
        # The half in which a result changes by more is kept: the other end moves to the middle.
        is_below = shares(end_results[0], results) >= shares(results, end_results[1])
        moved = is_below.astype(np.intp), np.arange(low.size)
        ends[moved] = middle
        end_results[moved] = results
    return ends[0], ends[1]
