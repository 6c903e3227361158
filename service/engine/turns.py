"""Short calls, computed on the event loop: each in a turn of its own, those that are alike in one turn together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from service.engine import company
from service.engine.jobs import Job
from service.engine.pace import Began, Paces, Where

AnyJob = Job[Any, Any]


class Turns:
    """The calls that wait for their turn. What is asked while others are computed is joined; nothing waits for more."""

    def __init__(self, paces: Paces, compute: Callable[[Sequence[AnyJob]], None]) -> None:
        """Begins with none.

        Args:
          paces: are told how long calls took.
          compute: computes jobs that are alike and tells their callers.
        """
        self._paces, self._compute = paces, compute
        self._waiting: dict[Hashable, list[AnyJob]] = {}

    def add(self, job: AnyJob) -> None:
        """Queues a call; its answer is set in a later turn of the running loop."""
        alike = company.likeness(job)
        self._waiting.setdefault(job if alike is None else alike, []).append(job)
        asyncio.get_running_loop().call_soon(self._take)

    def _take(self) -> None:
        """Computes the first that waits, and those alike; there are as many turns as calls."""
        if not self._waiting:
            return
        key = next(iter(self._waiting))
        jobs = self._waiting.pop(key)
        first = jobs[0]
        if len(jobs) > (joined_max := company.joined_max(first)):
            self._waiting[key], jobs = jobs[joined_max:], jobs[:joined_max]
        began = Began.now()
        self._compute(jobs)
        self._paces.held_up(first.lease.generation, first.kind, began, Where.AT_ONCE, len(jobs))
