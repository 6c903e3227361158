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


def chosen_bags(offsets: Offsets, bags: NDArray[np.int64]) -> tuple[NDArray[np.int64], Offsets]:
    """Chooses bags, any of them several times, and lays them end to end.

    Args:
      offsets: [n + 1], the offsets of all bags.
      bags: [m], the numbers of the chosen bags, in their new order.

    Returns:
      The positions of their values among those of all bags, and [m + 1], the offsets of the chosen
      bags.
    """
    chosen_lengths = lengths_of(offsets)[bags]
    chosen_offsets = offsets_of(chosen_lengths)
    # The distance of each copy from its original.
    distances = offsets[bags] - chosen_offsets[:-1]
    positions = np.arange(chosen_offsets[-1]) + distances.repeat(chosen_lengths)
    return positions, chosen_offsets
