"""Requests to the demo's service, through its client."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from examples.movielens.data import Ints
from examples.movielens.evaluate import Ask, K

AT_ONCE = 50
"""Questions in one call: fifty with two hundred candidates each are well within a service's limits.
"""


def features(question: Ask) -> dict[str, Any]:
    """Returns what a caller sends for one viewer."""
    return {
        "user_id": question.user_id,
        "history": question.history.tolist(),
        "hour": question.hour,
    }


def ranked_ids(
    call: Any, questions: Sequence[Ask], k: int = K, *, seen: bool = False, **options: Any
) -> list[Ints]:
    """Sends `client.retrieve` or `client.recommend` for all viewers; returns the ids of each one's
    `k` best movies.

    Args:
      seen: movies that the viewer has seen are returned, too.
    """
    ids: list[Ints] = []
    for first in range(0, len(questions), AT_ONCE):
        part = questions[first : first + AT_ONCE]
        exclude_ids = None if seen else [question.seen for question in part]
        contexts = [features(question) for question in part]
        found = call(contexts, k=k, exclude_ids=exclude_ids, timeout_s=60, **options)
        ids += [np.asarray(neighbors.ids, np.int64) for neighbors in found]
    return ids


def median_ms(call: Callable[[Ask], Any], questions: Sequence[Ask]) -> float:
    """Returns the median time of one call, one viewer after the other."""
    times = []
    for question in questions:
        start = time.perf_counter()
        call(question)
        times.append(time.perf_counter() - start)
    return 1e3 * float(np.median(times))
