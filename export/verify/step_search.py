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
    changes = np.abs(np.diff(results, axis=0))
    intervals = _Intervals(
        keys[:-1],
        keys[1:],
        results[:-1],
        results[1:],
        np.where(changes > 0, changes, np.inf),
    )
    for halvings in range(_ROUNDS_MAX):
        share = 0.0
        if halvings >= _SMOOTH_ROUNDS:
            share = _STEP_SHARE
        changed = intervals.shares(intervals.low_results, intervals.high_results)
        intervals = intervals.chosen(changed > share)
        if not np.any(intervals.high - intervals.low > 1):
            break
        intervals = intervals.halved(results_of)
    return intervals.low, intervals.high


class _Intervals:
    """Intervals between keys, in each of which a step is looked for.

    Attributes:
      low, high: [m] the keys at their ends.
      low_results, high_results: [m, d] the results of these keys.
      changes: [m, d] the changes of the results between the first ends; infinite for a result that
        did not change.
    """

    def __init__(
        self, low: Keys, high: Keys, low_results: Results, high_results: Results, changes: Results
    ) -> None:
        self.low = low
        self.high = high
        self.low_results = low_results
        self.high_results = high_results
        self.changes = changes

    def shares(self, first: Results, second: Results) -> NDArray[np.float64]:
        """Returns [m] the largest change between two results, as a share of the first change: a
        result of large numbers hides no other one.
        """
        shares: NDArray[np.float64] = (np.abs(second - first) / self.changes).max(
            axis=1, initial=0.0
        )
        return shares

    def chosen(self, rows: NDArray[np.bool_]) -> _Intervals:
        return _Intervals(
            self.low[rows],
            self.high[rows],
            self.low_results[rows],
            self.high_results[rows],
            self.changes[rows],
        )

    def halved(self, results_of: Callable[[Keys], Results]) -> _Intervals:
        """Returns the half of each interval in which a result changes by more."""
        middle = self.low + (self.high - self.low) // 2
        results = results_of(middle)
        changed_below = self.shares(self.low_results, results)
        is_below = changed_below >= self.shares(results, self.high_results)
        of_results = is_below[:, np.newaxis]
        return _Intervals(
            np.where(is_below, self.low, middle),
            np.where(is_below, middle, self.high),
            np.where(of_results, self.low_results, results),
            np.where(of_results, results, self.high_results),
            self.changes,
        )
