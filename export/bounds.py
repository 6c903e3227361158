"""By how much results of one model may differ and still be the same: the bounds of every
comparison of an export.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

ABSOLUTE = 1e-5
"""The difference that the parity rule allows whatever the size of a value."""
RELATIVE = 1e-5
"""The share of a value that the parity rule allows as a difference: 84 epsilons of float32."""
TOLERANCE = f"|d| <= {ABSOLUTE:g} + {RELATIVE:g} * max(|y|, median |y|)"
"""The parity rule of float32 forms. The median is that of all examples, and |y| of a vector that of
its largest value. A sum of large terms may be close to 0 for one example, or in one value of a
vector, and still has the rounding of its terms, as any order of float32 additions has.
"""
MEANINGFUL_MAX = 2.0**63
"""The magnitude from which on a number measures nothing: no integer type holds it, so it is no id,
no count, no amount of money, and no time, even in nanoseconds. Results of larger numbers may
differ, with a note.
"""
ROUNDING_FACTOR = 4
"""With hostile numbers, results may also differ by this number of times what random rounding makes
of an output.
"""
ANOTHER_ORDER = 1e-4
"""The share of the largest value of a result by which the same operation may differ in another
library, in a batch of another size or with its examples in another order.
"""
RECORDED_SHARE = 0.05
"""The share of the standard deviation of recorded values by which the model may differ from them:
what bfloat16 on TPUs may explain.
"""
RECORDED_REST = 1e-3
"""The share of the largest recorded value that is allowed besides, for values that hardly vary."""


def allowed(values: NDArray[Any], limit: float | None) -> NDArray[Any]:
    """Returns the differences from the reference model's values that the recipe's limit allows, or
    the parity rule.

    Args:
      values: [n, ...] values of all examples that are compared.
      limit: The recipe's limit; None: it states none.
    """
    if limit is not None:
        return np.full(values.shape, limit)
    finite = _finite_magnitudes(values)
    largest = finite.max(axis=tuple(range(1, values.ndim)), keepdims=True, initial=0.0)
    return of_magnitudes(np.maximum(largest, typical_magnitude(values)))


def of_magnitudes(magnitudes: NDArray[Any], limit: float | None = None) -> NDArray[Any]:
    """Returns what the parity rule allows for values of some magnitudes.

    Args:
      magnitudes: The magnitudes.
      limit: The difference that is allowed whatever the size of a value; None: `ABSOLUTE`.
    """
    least = ABSOLUTE if limit is None else limit
    tolerance: NDArray[Any] = least + RELATIVE * magnitudes
    return tolerance


def typical_magnitude(values: NDArray[Any]) -> NDArray[np.float64]:
    """Returns [...] the median magnitude of [n, ...] values over examples."""
    if not len(values):
        return np.zeros(values.shape[1:])
    median: NDArray[np.float64] = np.median(_finite_magnitudes(values), axis=0)
    return median


def of_another_order(values: NDArray[Any]) -> float:
    """Returns by how much values of the same operation may differ in another library, in a batch of
    another size or with their examples in another order.
    """
    return ANOTHER_ORDER * max(1.0, float(_finite_magnitudes(values).max(initial=0.0)))


def differ(
    results: NDArray[Any], expected: NDArray[Any], tolerance: NDArray[Any] | float
) -> NDArray[np.bool_]:
    """Returns where results differ by more than is allowed; NaN differs from everything."""
    return ~(_distances(results, expected) <= tolerance)


def largest_at(
    results: NDArray[Any], expected: NDArray[Any], where: NDArray[np.bool_] | bool = True
) -> tuple[float, int]:
    """Returns the largest difference of results, and its position in a flat array; none is larger
    than NaN.

    Args:
      results: [...] the results.
      expected: [...] the expected values.
      where: [...] the values to look at, one at least; True: all.

    Returns:
      Both; zeros if there are no results.
    """
    if not results.size:
        return 0.0, 0
    distances = np.nan_to_num(_distances(results, expected), nan=np.inf)
    looked_at = np.where(where, distances, -1.0)
    position = int(looked_at.argmax())
    return float(looked_at.reshape(-1)[position]), position


def _distances(results: NDArray[Any], expected: NDArray[Any]) -> NDArray[np.float64]:
    # Of two infinities, there is no difference.
    with np.errstate(invalid="ignore", over="ignore"):
        return np.abs(results.astype(np.float64) - expected.astype(np.float64))


def _finite_magnitudes(values: NDArray[Any]) -> NDArray[np.float64]:
    magnitudes = np.abs(values.astype(np.float64))
    return np.where(np.isfinite(magnitudes), magnitudes, 0.0)
