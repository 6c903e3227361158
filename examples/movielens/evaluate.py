"""Measures recommendations against the movies that viewers watched next: hit-rate@10 and NDCG@10
with 95 % bootstrap intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from examples.columns import Ragged
from examples.movielens.data import Ints
from examples.movielens.examples import FIRST_USER_ROW, Encoded, Requests

Floats = NDArray[np.float64]
K = 10
"""Number of movies of a list that are measured."""
RESAMPLES = 2_000
"""Number of times that the viewers are resampled for an interval."""


@dataclass(frozen=True)
class Question:
    """One viewer for whom movies are recommended, in the ids that a caller sends.

    Attributes:
      user_id: The viewer.
      history: The movies that the viewer watched last, the newest last.
      hour: The hour of the day.
      seen: The movies that the viewer has seen, which must not be recommended.
      watched_next: The movies that the viewer watched next.
    """

    user_id: int
    history: Ints
    hour: int
    seen: Ints
    watched_next: Ints


@dataclass(frozen=True)
class Interval:
    """A mean over viewers and its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """Returns `0.1046 (0.0929 to 0.1162)`."""
        return f"{self.value:.4f} ({self.low:.4f} to {self.high:.4f})"


@dataclass(frozen=True)
class Quality:
    """The quality of one method for each viewer.

    Attributes:
      name: The name of the method.
      hits: [viewers] 1 where one of the K movies was watched next, else 0.
      gains: [viewers] The NDCG@K.
    """

    name: str
    hits: Floats
    gains: Floats

    @property
    def hit_rate(self) -> Interval:
        """Mean over the viewers."""
        return bootstrap(self.hits)

    @property
    def ndcg(self) -> Interval:
        """Mean over the viewers."""
        return bootstrap(self.gains)


def questions_of(encoded: Encoded, requests: Requests) -> list[Question]:
    """Returns requests in ids instead of rows."""
    ids = encoded.movie_ids

    def lists_of(rows: Ragged) -> list[Ints]:
        return np.split(ids[rows.values], rows.offsets[1:-1])

    columns = zip(
        encoded.user_ids[requests.users - FIRST_USER_ROW],
        requests.hours,
        lists_of(requests.histories),
        lists_of(requests.seen),
        lists_of(requests.watched_next),
        strict=True,
    )
    return [
        Question(int(user), history, int(hour), seen, watched_next)
        for user, hour, history, seen, watched_next in columns
    ]


def popularity(encoded: Encoded, rows: Ints, questions: Sequence[Question]) -> list[Ints]:
    """Recommends the movies that most viewers watched in `rows` and that the viewer has not seen,
    ties by movie id.
    """
    counts = np.bincount(encoded.movies[rows], minlength=len(encoded.movie_ids))
    ranked = encoded.movie_ids[np.argsort(-counts, kind="stable")]
    return [ranked[~np.isin(ranked, question.seen)][:K] for question in questions]


def measure(name: str, questions: Sequence[Question], id_lists: Sequence[Ints]) -> Quality:
    """Compares recommended lists with the movies that viewers watched next.

    Raises:
      ValueError: A list has a movie twice, or a movie that the viewer has seen; or a question has
        no list.
    """
    hits = []
    gains = []
    for question, ids in zip(questions, id_lists, strict=True):
        top = np.asarray(ids)[:K]
        if len(np.unique(top)) < len(top) or np.isin(top, question.seen).any():
            raise ValueError(
                f"{name}: the list for user {question.user_id} repeats a movie or holds one "
                "already seen"
            )
        is_hit = np.isin(top, question.watched_next)
        # The best list begins with all movies that were watched next.
        best = np.ones(min(K, len(question.watched_next)), np.bool_)
        hits.append(float(is_hit.any()))
        gains.append(_gain(is_hit) / _gain(best))
    return Quality(name, np.array(hits), np.array(gains))


def _gain(hits: NDArray[np.bool_]) -> float:
    """Returns the discounted cumulative gain: a hit counts 1 / log2(1 + its position from 1)."""
    return float(np.sum(hits / np.log2(np.arange(2, len(hits) + 2))))


def bootstrap(values: Floats) -> Interval:
    """Returns a mean with its 95 % percentile interval over resampled viewers.

    For the differences of two methods, [viewers], it is the paired interval.
    """
    drawn = np.random.default_rng(0).integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.quantile(values[drawn].mean(1), [0.025, 0.975])
    return Interval(float(values.mean()), float(low), float(high))
