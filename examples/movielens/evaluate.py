"""Measures answers against what viewers watched next: hit-rate@10 and NDCG@10 with 95 % bootstrap
intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from examples.movielens.data import Ints
from examples.movielens.examples import Encoded, Requests

Floats = NDArray[np.float64]
K = 10
RESAMPLES = 2_000
"""Of the viewers, for an interval."""


@dataclass(frozen=True)
class Ask:
    """One viewer's question, in the ids that a caller sends."""

    user_id: int
    history: Ints
    hour: int
    seen: Ints
    """Never to be returned."""
    wanted: Ints
    """What the viewer watched next."""


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
    """How good one way of answering is, for each viewer.

    Attributes:
      hits: [viewers] 1 where the K movies hold one that was wanted, else 0. gains: [viewers]
        NDCG@K.
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


def asks(encoded: Encoded, requests: Requests) -> list[Ask]:
    """Returns requests in ids instead of rows."""
    ids = encoded.movie_ids

    def each(values: Ints, offsets: Ints) -> list[Ints]:
        return np.split(ids[values], offsets[1:-1])

    return [
        Ask(int(user), history, int(hour), seen, wanted)
        for user, hour, history, seen, wanted in zip(
            encoded.user_ids[requests.users - 1],
            requests.hours,
            each(requests.histories.values, requests.histories.offsets),
            each(requests.seen.values, requests.seen.offsets),
            each(requests.wanted.values, requests.wanted.offsets),
            strict=True,
        )
    ]


def popularity(encoded: Encoded, rows: Ints, questions: Sequence[Ask]) -> list[Ints]:
    """Answers with what most viewers watched in `rows` and the asking one has not seen; ties by
    movie id.
    """
    counts = np.bincount(encoded.movies[rows], minlength=len(encoded.movie_ids))
    ranked = encoded.movie_ids[np.argsort(-counts, kind="stable")]
    return [ranked[~np.isin(ranked, question.seen)][:K] for question in questions]


def measure(name: str, questions: Sequence[Ask], answers: Sequence[Ints]) -> Quality:
    """Compares answers with what was wanted.

    Raises:
      ValueError: an answer holds a movie twice, or one that the viewer has seen; or questions lack
        answers.
    """
    hits = []
    gains = []
    for question, answer in zip(questions, answers, strict=True):
        top = np.asarray(answer)[:K]
        if len(np.unique(top)) < len(top) or np.isin(top, question.seen).any():
            raise ValueError(
                f"{name}: the answer for user {question.user_id} repeats a movie or holds one "
                "already seen"
            )
        found = np.isin(top, question.wanted)
        hits.append(float(found.any()))
        gains.append(_gain(found) / _gain(np.ones(min(K, len(question.wanted)), np.bool_)))
    return Quality(name, np.array(hits), np.array(gains))


def _gain(found: NDArray[np.bool_]) -> float:
    """Discounted cumulative gain: each hit counts 1 / log2(1 + its place)."""
    return float(np.sum(found / np.log2(np.arange(2, len(found) + 2))))


def bootstrap(values: Floats) -> Interval:
    """Returns a mean with its 95 % percentile interval over resampled viewers.

    Of the differences of two ways to answer, [viewers], it is the paired interval.
    """
    drawn = np.random.default_rng(0).integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.quantile(values[drawn].mean(1), [0.025, 0.975])
    return Interval(float(values.mean()), float(low), float(high))
