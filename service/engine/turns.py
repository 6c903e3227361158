"""Short calls, computed on the event loop: each in a turn of its own, those that are alike in one turn together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Hashable
from concurrent.futures import Executor
from typing import Any

from service.engine import joining
from service.engine.jobs import Job
from service.engine.pace import Began, Paces
from service.errors import ServiceError

AnyJob = Job[Any, Any]


class Turns:
    """The calls that wait for their turn. What is asked while others are computed is joined; nothing waits for more."""

    def __init__(self, paces: Paces, threads: Executor) -> None:
        """Begins with none.

        Args:
          paces: are told how long calls took.
          threads: where what may take long is left to.
        """
        self._paces, self._threads = paces, threads
        self._waiting: dict[Hashable, list[AnyJob]] = {}

    def add(self, job: AnyJob) -> None:
        """Queues a call; its answer is set in a later turn of the running loop."""
        alike = joining.likeness(job.request)
        self._waiting.setdefault(job if alike is None else (job.lease.generation, alike), []).append(job)
        asyncio.get_running_loop().call_soon(self._take)

    def _take(self) -> None:
        """Computes the first that waits, and those alike; there are as many turns as calls."""
        if not self._waiting:
            return
        key = next(iter(self._waiting))
        jobs = self._waiting.pop(key)
        if len(jobs) > joining.JOINED_MAX:
            self._waiting[key], jobs = jobs[joining.JOINED_MAX :], jobs[: joining.JOINED_MAX]
        if len(jobs) == 1 or not self._joined(jobs):
            for job in jobs:
                self._alone(job)
        for job in jobs:
            self._release(job)

    def _alone(self, job: AnyJob) -> None:
        if job.answer.done():  # cancelled, and the one who waited was not woken yet
            job.steps.abandon()
        began = Began.now()
        try:
            answer = job.compute()
            job.steps.check()
        except ServiceError as problem:
            job.fail(problem)
        else:
            job.succeed(answer)
        self._paces.held_up(job.lease.generation, job.kind, began)

    def _joined(self, jobs: list[AnyJob]) -> bool:
        """Computes calls that are alike as one; tells whether that went well: if not, each alone tells what fails."""
        first = jobs[0]
        if any(job.answer.done() for job in jobs):
            return False
        began = Began.now()
        try:
            for job in jobs:
                job.steps.begun()
            steps = first.steps.joined([job.steps for job in jobs])
            request = joining.join([job.request for job in jobs])
            answer = first.work(first.lease.generation, request, first.settings, steps)
            parts = joining.split(answer, len(jobs))
            steps.check()
        except Exception:  # noqa: BLE001 - each is computed again, and its own failure told
            return False
        for job, part in zip(jobs, parts, strict=True):
            job.succeed(part)
        self._paces.held_up(first.lease.generation, first.kind, began, len(jobs))
        return True

    def _release(self, job: AnyJob) -> None:
        job.permit.release()
        if job.lease.retired:  # the last release closes the generation, which may take long
            with contextlib.suppress(RuntimeError):  # the threads have ended: so does the process
                self._threads.submit(job.lease.release)
        else:
            job.lease.release()
