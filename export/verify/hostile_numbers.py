"""Hostile numbers: those around which programs that compute the same formula give other results.

Logarithms and roots are off by a bit at powers and squares, sines lose their argument when it is
large, integers beyond 32 bits are cut, and squares of large numbers overflow.
"""

from __future__ import annotations

import functools
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from export.graphs.number_keys import Keys, numbers_of

NumberType = Literal["float32", "int32", "int64"]

_TIMES = (1e8, 1_700_000_000, 1_732_800_000, 1_700_000_000_123)
"""Unix times, in seconds and in milliseconds."""
_SQUARE_ROOTS = 1 << 11
"""The number of squares; the last is exact in float32."""
_RANDOM = 1 << 10
"""The number of random numbers of each kind."""
_GRID_LOW = 1e-3
_GRID_HIGH = 1e12
"""The ends of the numbers between which steps are looked for."""


@functools.cache
def hostile_numbers(dtype: NumberType) -> NDArray[Any]:
    """Returns [m] different hostile numbers of a type, ascending; the same in every run, which
    callers must not change.
    """
    if dtype == "float32":
        numbers: NDArray[Any] = _floats()
    else:
        limits = np.iinfo(dtype)
        integers = [number for number in _integers() if limits.min <= number <= limits.max]
        numbers = np.array(integers, dtype)
    numbers.flags.writeable = False
    return numbers


def grid(dtype: NumberType, size: int) -> NDArray[Any]:
    """Returns about `size` numbers of ordinary magnitudes, ascending: between two neighbors, a step
    of a function may lie.
    """
    positive = np.geomspace(_GRID_LOW, _GRID_HIGH, size * 3 // 4)
    negative = -np.geomspace(_GRID_LOW, _GRID_HIGH, size // 4)
    numbers = np.concatenate([negative, [0.0], positive])
    if dtype != "float32":
        limits = np.iinfo(dtype)
        numbers = numbers.clip(limits.min, limits.max).round()
    return np.unique(numbers.astype(dtype))


def numbers_around(dtype: NumberType, low: Keys, high: Keys) -> NDArray[Any]:
    """Returns numbers around steps, ascending.

    Args:
      dtype: The type of the numbers.
      low: [m] the keys before each step.
      high: [m] the keys behind it.
    """
    numbers = [numbers_of(keys, dtype) for keys in (low - 1, low, high, high + 1)]
    if dtype == "float32":
        # Counts are whole numbers that are sent as floats.
        numbers += [np.floor(numbers[1]), np.ceil(numbers[2])]
    return np.unique(np.concatenate(numbers))


def _integers() -> list[int]:
    """Returns hostile integers of 64 bits, ascending."""
    random = np.random.default_rng(0)
    integers = set(range(-16, 257))
    for exponent in range(64):
        integers.update((1 << exponent) + offset for offset in range(-3, 8))
    for exponent in range(19):
        integers.update(10**exponent + offset for offset in (-1, 0, 1))
    for root in range(_SQUARE_ROOTS):
        integers.update((root * root - 1, root * root))
    integers.update(int(time) for time in _TIMES)
    for bits in (16, 32, 63):
        integers.update(random.integers(0, 1 << bits, _RANDOM // 4).tolist())
    integers |= {-integer for integer in integers}
    limits = np.iinfo(np.int64)
    return sorted(integer for integer in integers if limits.min <= integer <= limits.max)


def _floats() -> NDArray[np.float32]:
    """Returns hostile finite numbers of float32, ascending."""
    random = np.random.default_rng(0)
    powers = np.concatenate([2.0 ** np.arange(-149, 128), 10.0 ** np.arange(-45, 39)])
    centers = np.concatenate([powers, _TIMES]).astype(np.float32)
    integers = np.array(_integers(), np.float64)
    # Amounts of money, which have cents.
    cents = np.round(random.lognormal(3, 4, _RANDOM), 2)
    numbers = np.concatenate(
        [
            centers,
            np.nextafter(centers, np.float32(0)),
            np.nextafter(centers, np.float32(np.inf)),
            centers * np.float32(1.5),
            integers.astype(np.float32),
            cents.astype(np.float32),
            random.standard_normal(_RANDOM).astype(np.float32),
            [np.finfo(np.float32).max],
        ],
        dtype=np.float32,
    )
    numbers = np.unique(np.concatenate([numbers, -numbers]))
    # -0.0 and 0.0 are equal, so that only one of them is left.
    numbers = numbers[np.isfinite(numbers) & (numbers != 0)]
    return np.concatenate(
        [numbers[numbers < 0], np.array([-0.0, 0.0], np.float32), numbers[numbers > 0]]
    )
