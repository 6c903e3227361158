"""The search for steps of a function."""

from __future__ import annotations

import numpy as np

from export.verify.step_search import find_steps


def test_one_step_is_found_in_each_interval_that_has_one_beside_smooth_results() -> None:
    random = np.random.default_rng(0)
    keys = np.arange(0, 1 << 40, 1 << 30)
    first_keys = keys[:-1:3] + random.integers(1, 1 << 30, keys[:-1:3].size)

    def results_of(some_keys: np.ndarray) -> np.ndarray:
        steps = np.searchsorted(first_keys, some_keys, side="right")
        return np.stack([np.sqrt(some_keys), steps * 0.01, some_keys * 1e9], axis=1)

    low, high = find_steps(results_of, keys)
    np.testing.assert_array_equal(high, first_keys)
    np.testing.assert_array_equal(low, first_keys - 1)
