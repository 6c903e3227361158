"""Requests to the demo's service, through its client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rowcast_client import Client

from examples.movielens.data import Ints
from examples.movielens.evaluate import Answer, Ask, K

AT_ONCE = 100
"""Questions in one call: a hundred with a hundred candidates each are well within a service's limits."""


def features(question: Ask) -> dict[str, Any]:
    """Returns what a caller sends for one viewer."""
    return {"user_id": question.user_id, "history": question.history.tolist(), "hour": question.hour}


def by_retrieval(client: Client) -> Answer:
    """Answers by the service's nearest movies."""
    return _in_parts(client.retrieve)


def by_recommendation(client: Client) -> Answer:
    """Answers by the service's nearest movies, ranked."""
    return _in_parts(client.recommend)


def _in_parts(call: Any) -> Answer:
    def answer(questions: Sequence[Ask]) -> list[Ints]:
        answers: list[Ints] = []
        for first in range(0, len(questions), AT_ONCE):
            part = questions[first : first + AT_ONCE]
            found = call([features(one) for one in part], k=K, exclude=[one.seen for one in part], timeout_s=60)
            answers += [np.asarray(neighbors.ids, np.int64) for neighbors in found]
        return answers

    return answer
