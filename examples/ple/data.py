"""Impressions of a feed: who likes which items is planted, so that a model can find it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from examples.columns import Column, Columns, Ints, Ragged, offsets_of, take

TASTES = 16
HISTORY = 20


@dataclass(frozen=True)
class Items:
    """Every item of the feed: what is stored of it, and its planted taste and quality."""

    columns: dict[str, Column]
    tastes: Ints
    qualities: NDArray[np.float64]


class Feed:
    """Draws impressions; the same seed draws the same ones."""

    def __init__(self, users: int, items: int, authors: int, tags: int, seed: int) -> None:
        """Makes the items; the arguments but `seed` are how many there are of each."""
        self._random = np.random.default_rng(seed)
        self._users = users
        tastes = self._random.integers(0, TASTES, items)
        lengths = self._random.integers(0, 4, items)
        # Authors and most tags belong to a taste.
        author = (self._random.integers(0, authors // TASTES, items) * TASTES + tastes).astype(
            np.int64
        )
        tag = self._random.integers(0, tags // TASTES, lengths.sum()) * TASTES + np.repeat(
            tastes, lengths
        )
        columns: dict[str, Column] = {
            "item_id": np.arange(items),
            "author_id": author,
            "tags": Ragged(tag.astype(np.int64), offsets_of(lengths)),
            "age": np.floor(self._random.exponential(40, items)).astype(np.float32),
        }
        self.items = Items(columns, tastes, self._random.normal(0, 1, items))
        self._of_taste = [np.flatnonzero(tastes == taste) for taste in range(TASTES)]

    def contexts(self, n: int) -> dict[str, Column]:
        """Draws who looks: a few users look often; most of what one watched is of the user's own
        taste.
        """
        users = (self._users * self._random.random(n) ** 4).astype(np.int64)
        lengths = self._random.integers(0, HISTORY + 1, n)
        watched = self._random.integers(0, len(self.items.tastes), lengths.sum())
        own = np.repeat(_taste(users), lengths)
        loyal = self._random.random(len(watched)) < 0.8
        for taste, items in enumerate(self._of_taste):
            mine = loyal & (own == taste)
            watched[mine] = items[self._random.integers(0, len(items), mine.sum())]
        history = Ragged(watched.astype(np.int64), offsets_of(lengths))
        return {"user_id": users, "history": history, "hour": self._random.integers(0, 24, n)}

    def shown(self, n: int) -> Ints:
        """Draws which items are shown."""
        return (len(self.items.tastes) * self._random.random(n) ** 2).astype(np.int64)

    def impressions(self, n: int) -> tuple[Columns, dict[str, NDArray[np.float32]]]:
        """Draws features, and what became of each impression."""
        contexts = self.contexts(n)
        shown = self.shown(n)
        users = contexts["user_id"]
        assert isinstance(users, np.ndarray)
        same = _taste(users) == self.items.tastes[shown]
        quality = self.items.qualities[shown]

        def happened(logits: NDArray[np.float64]) -> NDArray[np.float32]:
            return (self._random.random(n) < 1 / (1 + np.exp(-logits))).astype(np.float32)

        labels = {
            "click": happened(2.5 * same + 0.5 * quality - 1.5),
            "like": happened(1.5 * same + 1.5 * quality - 2),
            "watch": (
                1 / (1 + np.exp(-1.0 * same - quality - self._random.normal(0, 0.5, n)))
            ).astype(np.float32),
        }
        return {**contexts, **take(self.items.columns, shown)}, labels


def _taste(users: Ints) -> Ints:
    return (users * 2_654_435_761 >> 7) % TASTES
