"""Measures answers against what viewers watched next: hit-rate@10 and NDCG@10 with 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from examples.movielens.data import Ints
from examples.movielens.examples import Encoded, Requests

K = 10
Z = 1.959964
"""Of a 95 % interval."""


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


@dataclass(frozen=True)
class Quality:
    """How good one way of answering is."""

    name: str
    viewers: int
    hit_rate: Interval
    ndcg: Interval


Answer = Callable[[Sequence[Ask]], Sequence[Ints]]
"""Movie ids for each question, best first; at least K of them where there are."""


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


def popularity(encoded: Encoded, rows: Ints) -> Answer:
    """Answers with what most viewers watched in `rows` and the asking one has not seen; ties by movie id."""
    counts = np.bincount(encoded.movies[rows], minlength=len(encoded.movie_ids))
    ranked = encoded.movie_ids[np.argsort(-counts, kind="stable")]

    def answer(questions: Sequence[Ask]) -> list[Ints]:
        return [ranked[~np.isin(ranked, question.seen)][:K] for question in questions]

    return answer


def measure(name: str, questions: Sequence[Ask], answers: Sequence[Ints]) -> Quality:
    """Compares answers with what was wanted.

    Raises:
      ValueError: an answer holds a movie twice, or one that the viewer has seen; or questions lack answers.
    """
    hits, gains = [], []
    for question, answer in zip(questions, answers, strict=True):
        top = np.asarray(answer)[:K]
        if len(np.unique(top)) < len(top) or np.isin(top, question.seen).any():
            raise ValueError(
                f"{name}: the answer for user {question.user_id} repeats a movie or holds one already seen"
            )
        found = np.isin(top, question.wanted)
        hits.append(bool(found.any()))
        gains.append(_gain(found) / _gain(np.ones(min(K, len(question.wanted)), np.bool_)))
    return Quality(name, len(hits), wilson(sum(hits), len(hits)), mean(np.array(gains)))


def _gain(found: NDArray[np.bool_]) -> float:
    """Discounted cumulative gain: each hit counts 1 / log2(1 + its place)."""
    return float(np.sum(found / np.log2(np.arange(2, len(found) + 2))))


def wilson(hits: int, n: int) -> Interval:
    """Returns a share with Wilson's interval.

    Source: E. B. Wilson 1927, Probable inference, the law of succession, and statistical inference.
    """
    share = hits / n
    centre = (share + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * math.sqrt(share * (1 - share) / n + Z * Z / (4 * n * n))
    return Interval(share, centre - half, centre + half)


def mean(values: NDArray[np.float64]) -> Interval:
    """Returns a mean of values in [0, 1] with the normal interval, cut at 0."""
    centre = float(values.mean())
    half = Z * float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return Interval(centre, max(0.0, centre - half), centre + half)
