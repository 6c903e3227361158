"""Arithmetic that Python lacks."""

from __future__ import annotations

import math

_Z95 = 1.959963984540054
"""The 97.5 % quantile of the normal distribution, for intervals of 95 %."""


def ceil_div(dividend: int, divisor: int) -> int:
    """Returns the quotient of two integers, rounded up; exact for integers of any size."""
    quotient, remainder = divmod(dividend, divisor)
    return quotient + bool(remainder)


def wilson_interval(share: float, count: float) -> tuple[float, float]:
    """Returns the lower and the upper end of the 95 % Wilson interval of a share of `count`
    independent trials.

    Source: Wilson, JASA 22 (1927), p. 209.
    """
    square = _Z95 * _Z95
    middle = share + square / (2 * count)
    variance = share * (1 - share) / count + square / (4 * count * count)
    spread = _Z95 * math.sqrt(max(0.0, variance))
    scale = 1 + square / count
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)
