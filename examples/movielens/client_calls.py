"""Requests to the demo's service, through its client."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from examples.movielens.data import Ints
from examples.movielens.evaluate import K, Question

AT_ONCE = 50
"""Number of viewers in one call: 50 with 200 candidates each are well within a service's limits."""


def features(question: Question) -> dict[str, Any]:
    """Returns the context that a caller sends for one viewer."""
    return {
        "user_id": question.user_id,
        "history": question.history.tolist(),
        "hour": question.hour,
    }


def ranked_ids(
    call: Any, questions: Sequence[Question], k: int = K, *, seen: bool = False, **options: Any
) -> list[Ints]:
    """Calls `client.retrieve` or `client.recommend` for all viewers.

    Args:
      call: The method of the client.
      questions: The viewers.
      k: The number of movies for each viewer.
      seen: Whether movies that the viewer has seen may be returned, too.
      options: Further arguments of the method.

    Returns:
      For each viewer, the ids of the k best movies.
    """
    ids: list[Ints] = []
    for first in range(0, len(questions), AT_ONCE):
        batch = questions[first : first + AT_ONCE]
        exclude_ids = None
        if not seen:
            exclude_ids = [question.seen for question in batch]
        contexts = [features(question) for question in batch]
        lists = call(contexts, k=k, exclude_ids=exclude_ids, timeout_s=60, **options)
        ids += [np.asarray(neighbors.ids, np.int64) for neighbors in lists]
    return ids


def median_ms(call: Callable[[Question], Any], questions: Sequence[Question]) -> float:
    """Returns the median time of one call, one viewer after the other."""
    times = []
    for question in questions:
        start = time.perf_counter()
        call(question)
        times.append(time.perf_counter() - start)
    return 1e3 * float(np.median(times))
