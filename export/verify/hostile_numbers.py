"""Numbers for which frameworks and compilers compute different results.

Examples lie where data lie. A function that two programs compute by different arithmetic differs
elsewhere: beside a step, where a type ends, where an integer is no longer exact in a float.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_ROOTS_MAX = 1000
"""The largest integer whose square is listed."""
_SECONDS = (1_000_000_000, 1_700_000_000, 1_732_800_000, 2_000_000_000)
"""Times that clients send, in seconds since 1970."""


def hostile_numbers(
    dtype: str, low: float | None = None, high: float | None = None
) -> NDArray[Any]:
    """Returns powers of 2 and 10, squares, times, the ends of types, and the neighbors of all.

    Args:
      dtype: int32, int64, float32, or another type of integers or floats.
      low: The smallest number; None: that of the type.
      high: The largest number; None: that of the type. NaN is left out if there is a limit.

    Returns:
      [n] distinct numbers of the type, ascending: about 3,000 integers, or 4,400 float32. NaN is
      last, and -0.0 stands before 0.0.
    """
    number_type = np.dtype(dtype)
    edges = {0}
    edges.update(1 << bit for bit in range(65))
    edges.update(10**exponent for exponent in range(20))
    for seconds in _SECONDS:
        edges.update((seconds, 1000 * seconds))
    integers = {
        sign * edge + offset for edge in edges for sign in (-1, 1) for offset in range(-3, 4)
    }
    squares = {root * root for root in range(_ROOTS_MAX + 1)}
    integers |= squares | {square - 1 for square in squares}

    if number_type.kind in "iu":
        ends = np.iinfo(number_type)
        fitting = sorted(integer for integer in integers if ends.min <= integer <= ends.max)
        return _between(np.array(fitting, number_type), low, high)

    limits = np.finfo(number_type)
    exponents = np.arange(limits.minexp - limits.nmant, limits.maxexp)
    decimal_exponents = np.arange(-limits.precision, np.log10(limits.max))
    positive = np.concatenate([np.exp2(exponents), 10.0**decimal_exponents, [limits.max]])
    with np.errstate(over="ignore"):
        whole = np.array([float(integer) for integer in sorted(integers)]).astype(number_type)
        positive = positive.astype(number_type)
        # Steps of rounding are halfway between integers.
        halves = np.array([edge / 2 for edge in edges]).astype(number_type)
        centers = np.concatenate([positive, halves, -positive, -halves])
        infinity = number_type.type(np.inf)
        below = np.nextafter(centers, -infinity)
        above = np.nextafter(centers, infinity)
    numbers = np.unique(np.concatenate([whole, centers, below, above, [infinity, -infinity]]))
    # Zeros of both signs are equal, but a division or a logarithm separates them.
    negative = numbers[numbers < 0]
    not_negative = np.abs(numbers[numbers >= 0])
    all_numbers = np.concatenate([negative, [-0.0], not_negative, [np.nan]])
    return _between(all_numbers.astype(number_type), low, high)


def _between(numbers: NDArray[Any], low: float | None, high: float | None) -> NDArray[Any]:
    if low is not None:
        numbers = numbers[numbers >= low]
    if high is not None:
        numbers = numbers[numbers <= high]
    return numbers
