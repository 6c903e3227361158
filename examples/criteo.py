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
"""Of Criteo's terabyte. Source: TensorFlow Model Garden, official/recommendation/ranking/README.md.
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
"""Ids of each category in the multi-hot Criteo of MLPerf's DLRM DCN v2 benchmark."""
CONTEXT = 16
"""The first categories, with the numbers, tell who sees the page; the others tell what is shown."""


def names(count: int = len(VOCABULARY_SIZES)) -> tuple[str, ...]:
    """Returns the names of the categories."""
    return tuple(f"c{number}" for number in range(1, count + 1))


class Clicks:
    """Draws impressions and whether they were clicked; the same seed draws the same ones."""

    def __init__(self, rows: Sequence[int], ids: Sequence[int], seed: int) -> None:
        """Prepares the draw.

        Args:
          rows: of the table of each category.
          ids: the most ids of each category in an example; 1: exactly one.
          seed: of the generator.
        """
        self._rows = rows
        self._most = ids
        self._random = np.random.default_rng(seed)

    def contexts(self, n: int) -> dict[str, Column]:
        """Draws who sees the page."""
        numbers = np.floor(np.exp(self._random.normal(1.0, 1.5, (n, NUMBERS)))).astype(np.float32)
        return {"numbers": numbers, **self._categories(range(CONTEXT), n)}

    def shown(self, n: int) -> dict[str, Column]:
        """Draws what is shown."""
        return self._categories(range(CONTEXT, len(self._rows)), n)

    def impressions(self, n: int) -> tuple[Columns, dict[str, NDArray[np.float32]]]:
        """Draws features and clicks."""
        features = {**self.contexts(n), **self.shown(n)}
        chances = 1 / (1 + np.exp(-self._logits(features)))
        return features, {"click": (self._random.random(n) < chances).astype(np.float32)}

    def _categories(self, which: range, n: int) -> dict[str, Column]:
        found: dict[str, Column] = {}
        for place in which:
            most = self._most[place]
            lengths = np.ones(n, np.int64) if most == 1 else self._random.integers(0, most + 1, n)
            # Few ids are seen often and most hardly ever, as in the logs.
            ids = (self._rows[place] * self._random.random(int(lengths.sum())) ** 4).astype(
                np.int64
            )
            found[names()[place]] = ids if most == 1 else Ragged(ids, offsets_of(lengths))
        return found

    def _logits(self, features: Columns) -> NDArray[np.float64]:
        """Every id has an effect; half of the categories also change what the next one's does."""
        effects = [effect(features[name], place) for place, name in enumerate(names())]
        numbers = np.log1p(features["numbers"])
        crossed = sum(
            first * second for first, second in zip(effects[::2], effects[1::2], strict=True)
        )
        total: NDArray[np.float64] = (
            0.5 * sum(effects) + crossed - 0.3 * numbers[:, 0] + 0.3 * numbers[:, 5] - 1.0
        )
        return total


def effect(ids: Column, salt: int) -> NDArray[np.float64]:
    """Returns [n] a number between -1 and 1 that hangs on nothing but the ids: the mean over
    several.
    """
    values = ids.values if isinstance(ids, Ragged) else ids
    mixed = (values.astype(np.uint64) + np.uint64(1 + salt)) * np.uint64(0x9E3779B97F4A7C15)
    effects = (mixed >> np.uint64(11)).astype(np.float64) / 2**52 - 1
    if not isinstance(ids, Ragged):
        return effects
    sums = np.concatenate([[0.0], np.cumsum(effects)])
    return (sums[ids.offsets[1:]] - sums[ids.offsets[:-1]]) / np.maximum(np.diff(ids.offsets), 1)


def scaled(first: int, others: int) -> tuple[int, ...]:
    """Returns the vocabulary sizes; the first is at most `first`, none of the others is above
    `others`.
    """
    return tuple(
        min(rows, others if place else first) for place, rows in enumerate(VOCABULARY_SIZES)
    )
