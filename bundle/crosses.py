"""Several inputs -> rows: every combination of their values hashed together, as TensorFlow's crossed columns do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bundle import fingerprints
from bundle.columns import Offsets
from bundle.errors import FeatureError
from bundle.feature_pages import CrossedIds, CrossKey
from bundle.id_values import Rows, Values, integers, numbers, strings
from bundle.ids import hashes, within

COMBINATIONS_MAX = 1 << 20
"""Combinations made for one feature of one call: a few long bags have a great many."""


class Crossed:
    """Row = hash of one value of each input together, mod `buckets`; the values of the last input vary fastest."""

    def __init__(self, names: Sequence[str], rows: int, page: CrossedIds) -> None:
        self._names, self._rows, self._page = names, rows, page

    def resolve(self, columns: Sequence[tuple[Values, Offsets]]) -> tuple[Rows, Offsets]:
        """Resolves the values of n examples.

        Args:
          columns: of each input, its values and [n + 1] int64 offsets.
        Returns:
          [m] int64 rows, and [n + 1] int64 offsets: an example without a value of some input has no row.
        Raises:
          FeatureError: a value does not fit its input, or there are more than `COMBINATIONS_MAX` combinations.
        Source: TensorFlow 2.20, core/kernels/sparse_cross_op.cc, HashCrosser and ProductIterator (the rule).
        """
        lengths = [np.diff(offsets) for _, offsets in columns]
        # In floats: the product of a few long bags' lengths may not fit an int64.
        if np.prod(np.array(lengths, np.float64), axis=0).sum() > COMBINATIONS_MAX:
            raise FeatureError(
                self._names[0], f"crossed with {', '.join(self._names[1:])} it has more than {COMBINATIONS_MAX} values"
            )
        counts = np.prod(np.array(lengths), axis=0, dtype=np.int64)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        example = np.repeat(np.arange(counts.size), counts)
        left = np.arange(offsets[-1]) - offsets[example]
        places: list[NDArray[np.int64]] = []
        for length, (_, starts) in zip(reversed(lengths), reversed(columns), strict=True):
            places.append(starts[example] + left % length[example])
            left //= length[example]
        found = np.full(example.size, self._page.hash_key, np.uint64)
        for name, key, (values, _), place in zip(self._names, self._page.keys, columns, reversed(places), strict=True):
            found = fingerprints.joined(found, _hashed(name, key, values)[place])
        return within((found % np.uint64(self._page.buckets)).astype(np.int64), self._rows), offsets


def _hashed(name: str, key: CrossKey, values: Values) -> NDArray[np.uint64]:
    if key.boundaries is not None:
        boundaries = np.asarray(key.boundaries, np.float32)
        return np.searchsorted(boundaries, numbers(name, values), side="right").astype(np.uint64)
    if key.dtype == "string":
        return hashes(name, strings(name, values))
    return integers(name, values).view(np.uint64)
