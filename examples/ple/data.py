"""Impressions of a feed, with planted tastes of users that a model can find."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from examples.columns import Column, Columns, Ints, Ragged, offsets_of, take

TASTES = 16
HISTORY = 20


@dataclass(frozen=True)
class Items:
    """All items of the feed.

    Attributes:
      columns: The features that are stored.
      tastes: The planted taste of each item.
      qualities: The planted quality of each item.
    """

    columns: dict[str, Column]
    tastes: Ints
    qualities: NDArray[np.float64]


class Feed:
    """Draws impressions. The same seed draws the same impressions."""

    def __init__(self, users: int, items: int, authors: int, tags: int, seed: int) -> None:
        """Draws the items of the feed.

        Args:
          users: The number of users.
          items: The number of items.
          authors: The number of authors.
          tags: The number of tags.
          seed: The seed of the generator.
        """
        self._random = np.random.default_rng(seed)
        self._users = users
        tastes = self._random.integers(0, TASTES, items)
        lengths = self._random.integers(0, 4, items)
        # Authors and most tags belong to a taste.
        author = self._random.integers(0, authors // TASTES, items) * TASTES + tastes
        tag = self._random.integers(0, tags // TASTES, lengths.sum()) * TASTES
        tag += np.repeat(tastes, lengths)
        columns: dict[str, Column] = {
            "item_id": np.arange(items),
            "author_id": author.astype(np.int64),
            "tags": Ragged(tag.astype(np.int64), offsets_of(lengths)),
            "age": np.floor(self._random.exponential(40, items)).astype(np.float32),
        }
        self.items = Items(columns, tastes, self._random.normal(0, 1, items))
        self._items_by_taste = [np.flatnonzero(tastes == taste) for taste in range(TASTES)]

    def contexts(self, n: int) -> dict[str, Column]:
        """Draws contexts: a few users come often, and most items in a user's history are of the
        user's taste.
        """
        users = (self._users * self._random.random(n) ** 4).astype(np.int64)
        lengths = self._random.integers(0, HISTORY + 1, n)
        watched = self._random.integers(0, len(self.items.tastes), lengths.sum())
        tastes = np.repeat(_taste(users), lengths)
        is_of_taste = self._random.random(len(watched)) < 0.8
        for taste, items in enumerate(self._items_by_taste):
            positions = np.flatnonzero(is_of_taste & (tastes == taste))
            watched[positions] = items[self._random.integers(0, len(items), positions.size)]
        history = Ragged(watched.astype(np.int64), offsets_of(lengths))
        return {"user_id": users, "history": history, "hour": self._random.integers(0, 24, n)}

    def draw_items(self, n: int) -> Ints:
        """Draws the items that are shown, as rows."""
        return (len(self.items.tastes) * self._random.random(n) ** 2).astype(np.int64)

    def impressions(self, n: int) -> tuple[Columns, dict[str, NDArray[np.float32]]]:
        """Draws features, and the labels of each impression."""
        contexts = self.contexts(n)
        items = self.draw_items(n)
        users = contexts["user_id"]
        assert isinstance(users, np.ndarray)
        is_liked = _taste(users) == self.items.tastes[items]
        quality = self.items.qualities[items]

        def draw_events(logits: NDArray[np.float64]) -> NDArray[np.float32]:
            probabilities = 1 / (1 + np.exp(-logits))
            return (self._random.random(n) < probabilities).astype(np.float32)

        labels = {
            "click": draw_events(2.5 * is_liked + 0.5 * quality - 1.5),
            "like": draw_events(1.5 * is_liked + 1.5 * quality - 2),
        }
        # The share of an item that is watched is no event: noise moves it.
        noise = self._random.normal(0, 0.5, n)
        watched = 1 / (1 + np.exp(-1.0 * is_liked - quality - noise))
        labels["watch"] = watched.astype(np.float32)
        return {**contexts, **take(self.items.columns, items)}, labels


def _taste(users: Ints) -> Ints:
    # A hash, so that the taste of a user can be learned by the id alone.
    return (users * 2_654_435_761 >> 7) % TASTES
