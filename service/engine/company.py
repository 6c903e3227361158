"""Calls that are computed as one: which can be, how many of them, and the computing itself.

How requests of one kind are joined and their answer is split is a module of its own, listed in `_JOINING`.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from typing import Any, Protocol

from service.engine import joined_rankings, joining
from service.engine.jobs import Job
from service.engine.requests import Ranking, Retrieval

AnyJob = Job[Any, Any]


class Joining(Protocol):
    """How requests of one kind are joined."""

    JOINED_MAX: int
    """Requests joined at most."""

    def likeness(self, request: Any) -> Hashable | None:
        """Returns what is equal for requests that can be joined; None: this one cannot, or it would not pay."""

    def join(self, requests: Sequence[Any]) -> Any:
        """Returns one request for what several ask that are alike."""

    def split(self, answer: Any, n: int) -> Sequence[Any]:
        """Returns the answer to each of the n requests that were joined.

        Raises:
          ValueError: it is no answer to them.
        """


_JOINING: dict[type, Joining] = {Retrieval: joining, Ranking: joined_rankings}


def likeness(job: AnyJob) -> Hashable | None:
    """Returns what is equal for jobs that can be computed as one; None: this one cannot."""
    how = _JOINING.get(type(job.request))
    alike = None if how is None else how.likeness(job.request)
    return None if alike is None else (job.lease.generation, alike)


def joined_max(job: AnyJob) -> int:
    """Returns how many jobs like this one are computed as one at most."""
    how = _JOINING.get(type(job.request))
    return 1 if how is None else how.JOINED_MAX


def compute(jobs: Sequence[AnyJob]) -> bool:
    """Computes jobs, those that are alike as one, in whatever thread; each then has its answer or its failure.

    Returns:
      Whether they were computed as one. If anything fails then, each is computed alone, and only one at fault fails.
    """
    if len(jobs) > 1 and _as_one(jobs):
        return True
    for job in jobs:
        job.compute()
    return False


def _as_one(jobs: Sequence[AnyJob]) -> bool:
    first, how = jobs[0], _JOINING[type(jobs[0].request)]
    try:
        for job in jobs:
            job.steps.begun()
        steps = first.steps.joined([job.steps for job in jobs])
        began = time.perf_counter()
        request = how.join([job.request for job in jobs])
        try:
            answer = first.work(first.lease.generation, request, first.settings, steps)
        finally:
            steps.observe()
        parts = how.split(answer, len(jobs))
        took_s = (time.perf_counter() - began + steps.helped_s) / len(jobs)
        steps.check()
    except Exception:  # noqa: BLE001 - each is computed again, and its own failure told
        return False
    for job, part in zip(jobs, parts, strict=True):
        job.computed(part, took_s)
    return True
