"""Offsets of bags that lie end to end: bag i owns values[offsets[i]:offsets[i + 1]]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Offsets = NDArray[np.int64]


def offsets_of(lengths: Sequence[int] | NDArray[Any]) -> Offsets:
    """Returns [n + 1] int64: 0, and the running sums of n lengths."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def lengths_of(offsets: Offsets) -> NDArray[np.int64]:
    """Returns [n] int64: the lengths of the bags. `np.diff` takes six calls."""
    return offsets[1:] - offsets[:-1]
