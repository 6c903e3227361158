"""Integers that number the finite values of a type in order, so that neighboring keys are
neighboring numbers, and a bisection between two numbers ends.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.format.id_graphs import InputDtype

Numbers = NDArray[Any]
Keys = NDArray[np.int64]
_SIGN_BIT = 1 << 31


def numbers_of(keys: Keys, dtype: InputDtype) -> Numbers:
    """Returns the numbers of keys: the key of a positive float is its bits, and that of a negative
    one is the key of its absolute value, negated. Integers are their own keys.
    """
    if dtype != "float32":
        return keys.astype(dtype)
    bits = np.where(keys < 0, -keys | _SIGN_BIT, keys)
    return bits.astype(np.uint32).view(np.float32)


def keys_of(numbers: Numbers) -> Keys:
    """Returns the keys of numbers: those of 0.0 and -0.0 are one."""
    if numbers.dtype != np.float32:
        return numbers.astype(np.int64)
    bits = np.abs(numbers).view(np.int32).astype(np.int64)
    return np.where(numbers < 0, -bits, bits)
