"""When and where a call is computed: short ones at once on the event loop, the others in line for loop and threads.

A call that could not be answered in time behind those before it is refused when it comes; one whose time ran out all
the same, or whose caller left, is dropped before it is computed. Nothing waits while a thread has nothing to do.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from typing import Any

from service.engine import company
from service.engine.hands import Hands
from service.engine.jobs import Job
from service.engine.line import Line
from service.engine.occupancy import Occupancy
from service.engine.pace import Began, Paces, Where
from service.engine.threads import ComputeThreads
from service.engine.turns import Turns
from service.errors import DeadlineExceeded, NotReady, Overloaded
from service.metrics import Metrics

AnyJob = Job[Any, Any]

_SAFETY = 2.0
"""Times the expected wait that a call must have: it is to be answered in time also if those before it take longer than
calls like them did, and behind a line that is never empty a longer one would bring nothing."""
_RARE = 0.05
"""A call of whose last ones a smaller share was computed at once is expected to come in line."""
_NEWS = 0.05
"""How much what is known of calls of a name follows the newest one."""


class Scheduler:
    """The line, the turns and the threads. Its methods run on one event loop, but where they tell otherwise."""

    def __init__(
        self,
        threads: int,
        paces: Paces,
        line_max: int,
        retry_after_s: float,
        metrics: Metrics,
        occupancy: Occupancy,
        helpers: int = 0,
        piece_s: float = 0.0,
    ) -> None:
        """Begins with no call.

        Args:
          threads: that compute.
          paces: tell which calls the event loop may compute.
          line_max: calls that wait in line.
          retry_after_s: least time that a refused caller is told to wait, seconds.
          metrics: are told what is queued, joined and shed.
          occupancy: tells whether cores are idle.
          helpers: further threads, that only help with large calls.
          piece_s: about how long a piece of a large call takes, seconds; 0: none is divided.
        """
        self._line_max, self._retry_after_s, self._metrics, self._paces = line_max, retry_after_s, metrics, paces
        self._threads, self._line = ComputeThreads(threads + helpers), Line(threads)
        self._turns = Turns(self._paces, self._at_once)
        self._hands = Hands(
            self._line, self._threads, threads, occupancy, self._compute, self._in_turn, self._computed, piece_s
        )
        self._short: dict[str, float] = {}
        """By name of calls: the share of the last ones that was computed at once."""
        self._told: tuple[str, float, Overloaded] | None = None
        metrics.queued(lambda: len(self._line), lambda: self._line.candidates)

    @property
    def wait_s(self) -> float:
        """How long a call that comes now will wait in line, seconds."""
        return self._line.wait_s

    @property
    def retry_after_s(self) -> float:
        """When a caller that is refused now had better come again, seconds: once what is in line was computed."""
        return max(self._retry_after_s, self._line.wait_s)

    def refusal(self, name: str, timeout_s: float) -> Overloaded | None:
        """Returns why a call that is not decoded yet would be refused for the line; None: it would not.

        Args:
          name: of the call: neither its kind nor how long that takes is known, but those of its name are.
          timeout_s: that its caller waits from now on, seconds.
        """
        if self._short.get(name, 1.0) > _RARE:
            return None
        wait_s = self._line.wait_s
        if len(self._line) >= self._line_max:
            return self._refused("line", wait_s)
        return self._refused("deadline", wait_s) if wait_s and _SAFETY * wait_s > timeout_s else None

    def submit(self, job: AnyJob) -> None:
        """Has a job computed; whoever waits is told, and what it holds is released, when that is done.

        Raises:
          Overloaded: the line is full, or its deadline would be over.
        """
        job.steps.helpers = self._hands
        generation = job.lease.generation
        where = self._paces.where(generation, job.kind)
        short = where is Where.AT_ONCE
        share = self._short.get(job.steps.call, float(short))
        self._short[job.steps.call] = share + (short - share) * _NEWS
        if short:
            self._turns.add(job)
            return
        now, wait_s = time.monotonic(), self._line.wait_s
        if len(self._line) >= self._line_max:
            raise self._refused("line", wait_s).with_traceback(None)
        job.expected_s = self._paces.usual_s(generation, job.kind)
        # No margin here: what was let in in spite of it would be decoded for nothing, again and again.
        if wait_s and now + wait_s + job.expected_s > job.steps.deadline:
            self._paces.doubted(generation, job.kind)
            raise self._refused("deadline", wait_s + job.expected_s).with_traceback(None)
        job.on_loop, job.in_thread = where is not Where.THREAD, where is not Where.LOOP
        self._line.add(job)
        self._hands.added(job)
        job.late = job.loop.call_later(job.steps.deadline - now, self._overdue, job)

    def drop(self, job: AnyJob) -> None:
        """Gives a job up that nobody waits for any more: it ends now if it still waits, else before its next step."""
        job.steps.abandon()
        if job.late is not None:
            job.late.cancel()
        if self._line.drop(job):
            job.steps.shed()
            self._release(job)

    def close(self) -> None:
        """Ends the threads; jobs that were not begun are dropped."""
        self._threads.close()
        while jobs := self._line.take():
            for job in jobs:
                job.release()
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                    job.loop.call_soon_threadsafe(job.settle, NotReady("the service is going down"))

    def _computed(self, jobs: Sequence[AnyJob]) -> None:
        for job in jobs:
            if job.took_s is not None:
                self._paces.computed(job.lease.generation, job.kind, job.took_s)
            self._release(job)
            job.tell()

    def _in_turn(self, jobs: Sequence[AnyJob]) -> None:
        first, began = jobs[0], Began.now()
        generation, kind = first.lease.generation, first.kind
        self._compute(jobs)
        self._computed(jobs)
        self._paces.held_up(generation, kind, began, Where.ANYWHERE, len(jobs))

    def _at_once(self, jobs: Sequence[AnyJob]) -> None:
        self._compute(jobs)
        for job in jobs:
            self._release(job)
            job.tell()

    def _compute(self, jobs: Sequence[AnyJob]) -> None:
        name = jobs[0].steps.call
        if company.compute(jobs):
            self._metrics.joined(name, len(jobs), sum([job.candidates for job in jobs]))
        else:
            for job in jobs:
                self._metrics.joined(name, 1, job.candidates)

    def _release(self, job: AnyJob) -> None:
        job.permit.release()
        if job.lease.retired:  # the last release closes the generation, which may take long
            self._threads.submit(job.lease.release)
        else:
            job.lease.release()

    def _overdue(self, job: AnyJob) -> None:
        job.settle(DeadlineExceeded("the time for this call is over"))
        self.drop(job)

    def _refused(self, reason: str, wait_s: float) -> Overloaded:
        """Returns the same for all calls that are refused for the same: there may be many until the line is another."""
        wait_s, latest = math.ceil(wait_s * 100) / 100, self._told  # to the millisecond it is another with each job
        if latest is None or latest[1] != wait_s or latest[0] != reason:
            if reason == "line":
                told = f"{self._line_max} calls wait in line, no more do at once"
            else:
                told = f"this call would take about {wait_s:.2f} s, too long to be sure of its deadline"
            latest = self._told = reason, wait_s, Overloaded(told, max(self._retry_after_s, wait_s), reason)
        return latest[2]
