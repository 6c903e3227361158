"""Integer arithmetic that Python lacks."""

from __future__ import annotations


def ceil_div(dividend: int, divisor: int) -> int:
    """Returns the quotient of two integers, rounded up; exact for integers of any size."""
    quotient, remainder = divmod(dividend, divisor)
    return quotient + bool(remainder)
