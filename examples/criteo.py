"""Clicks in the shape of Criteo's logs: 13 numbers and 26 categories, with effects of ids that a
model can learn.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from examples.columns import Column, Columns, Ragged, offsets_of

NUMBERS = 13
VOCABULARY_SIZES = (
    39_884_406, 39_043, 17_289, 7_420, 20_263, 3, 7_120, 1_543, 63, 38_532_951, 2_953_546, 403_346,
    10, 2_208,
    11_938, 155, 4, 976, 14, 39_979_771, 25_641_295, 39_664_984, 585_935, 12_972, 108, 36,
)  # fmt: skip
"""Number of ids of each category in Criteo's terabyte. Source: TensorFlow Model Garden,
official/recommendation/ranking/README.md.
"""
MULTI_HOT_SIZES = (
    3,
    2,
    1,
    2,
    6,
    1,
    1,
    1,
    1,
    7,
    3,
    8,
    1,
    6,
    9,
    5,
    1,
    1,
    1,
    12,
    100,
    27,
    10,
    3,
    1,
    1,
)
"""Number of ids of each category per example in the multi-hot Criteo of MLPerf's DLRM DCN v2
benchmark.
"""
CONTEXT = 16
"""Number of categories that, with the numbers, describe who sees the page. The further categories
describe the candidate that is shown.
"""


def names(count: int = len(VOCABULARY_SIZES)) -> tuple[str, ...]:
    """Returns the names of the categories."""
    return tuple(f"c{number}" for number in range(1, count + 1))


class Clicks:
    """Draws impressions and whether they were clicked. The same seed draws the same impressions."""

    def __init__(self, rows: Sequence[int], ids: Sequence[int], seed: int) -> None:
        """Prepares the draw.

        Args:
          rows: The number of rows of each category's table.
          ids: The maximum number of ids of each category in an example; 1: exactly one id.
          seed: The seed of the generator.
        """
        self._rows = rows
        self._ids_max = ids
        self._random = np.random.default_rng(seed)

    def contexts(self, n: int) -> dict[str, Column]:
        """Draws contexts: the features of who sees the page."""
        logarithms = self._random.normal(1.0, 1.5, (n, NUMBERS))
        numbers = np.floor(np.exp(logarithms)).astype(np.float32)
        return {"numbers": numbers, **self._categories(range(CONTEXT), n)}

    def candidates(self, n: int) -> dict[str, Column]:
        """Draws candidates: the features of what is shown."""
        return self._categories(range(CONTEXT, len(self._rows)), n)

    def impressions(self, n: int) -> tuple[Columns, dict[str, NDArray[np.float32]]]:
        """Draws features and clicks."""
        features = {**self.contexts(n), **self.candidates(n)}
        probabilities = 1 / (1 + np.exp(-self._logits(features)))
        clicks = (self._random.random(n) < probabilities).astype(np.float32)
        return features, {"click": clicks}

    def _categories(self, categories: range, n: int) -> dict[str, Column]:
        columns: dict[str, Column] = {}
        for category in categories:
            ids_max = self._ids_max[category]
            lengths = np.ones(n, np.int64)
            if ids_max > 1:
                lengths = self._random.integers(0, ids_max + 1, n)
            # Few ids are seen often and most hardly ever, as in the logs.
            shares = self._random.random(int(lengths.sum())) ** 4
            ids = (self._rows[category] * shares).astype(np.int64)
            name = names()[category]
            columns[name] = ids if ids_max == 1 else Ragged(ids, offsets_of(lengths))
        return columns

    def _logits(self, features: Columns) -> NDArray[np.float64]:
        """Every id has an effect; half of the categories also change the effect of the next one."""
        effects = [effect(features[name], category) for category, name in enumerate(names())]
        numbers = np.log1p(features["numbers"])
        crossed = sum(
            first * second for first, second in zip(effects[::2], effects[1::2], strict=True)
        )
        linear = 0.5 * sum(effects) - 0.3 * numbers[:, 0] + 0.3 * numbers[:, 5] - 1.0
        logits: NDArray[np.float64] = linear + crossed
        return logits


def effect(ids: Column, salt: int) -> NDArray[np.float64]:
    """Returns [n] numbers between -1 and 1 that depend on the ids and the salt alone; the mean
    where an example has several ids.
    """
    values = ids.values if isinstance(ids, Ragged) else ids
    # Multiplicative hashing by 2^64 divided by the golden ratio. The upper 53 bits are a fraction.
    mixed = (values.astype(np.uint64) + np.uint64(1 + salt)) * np.uint64(0x9E3779B97F4A7C15)
    effects = (mixed >> np.uint64(11)).astype(np.float64) / 2**52 - 1
    if not isinstance(ids, Ragged):
        return effects

    sums = np.concatenate([[0.0], np.cumsum(effects)])
    totals = sums[ids.offsets[1:]] - sums[ids.offsets[:-1]]
    # An example without ids has the effect 0.
    return totals / np.maximum(np.diff(ids.offsets), 1)


def scaled(first: int, further: int) -> tuple[int, ...]:
    """Returns the vocabulary sizes: the first is at most `first`, the others are at most
    `further`.
    """
    sizes = [min(rows, further) for rows in VOCABULARY_SIZES]
    sizes[0] = min(VOCABULARY_SIZES[0], first)
    return tuple(sizes)
