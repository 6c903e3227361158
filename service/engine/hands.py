"""Who computes what is in line: the event loop itself, between two looks at its sockets, or the compute threads.

A call that the loop computes is handed to nobody and back, and no thread contends with the loop for the interpreter's
lock: with a worker for each core that is the cheapest way. But while the loop computes it hears nobody, so that calls
may wait in their sockets although a core is idle; where that happens, threads are called first, and the loop last.

Threads and cores that are still idle then help with what is computed, if it is large: a piece of it at a time, so that
whatever comes to the line comes first.
"""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from service.engine.jobs import Job
from service.engine.line import Line
from service.engine.occupancy import Occupancy
from service.engine.pieces import Pieces
from service.engine.threads import ComputeThreads

AnyJob = Job[Any, Any]
Handling = Callable[[Sequence[AnyJob]], None]

_NEWS = 0.05
"""How much the share of calls that were kept waiting follows the newest one."""
_SELDOM, _OFTEN = 0.15, 0.4
"""Shares of calls kept waiting below which the loop computes first, and above which threads do."""


_ROUNDS_MAX, _QUIET_S = 16, 15e-6
"""Before its turn the loop goes round until a round was as short as one in which nothing came, but only so often.
A round costs a microsecond; a new connection takes some four from its acceptance to its first call."""


class Hands:
    """Calls the loop or threads to the line. Its methods run on the loop, but where they tell otherwise."""

    def __init__(
        self,
        line: Line,
        threads: ComputeThreads,
        share: int,
        occupancy: Occupancy,
        compute: Handling,
        turned: Handling,
        told: Handling,
        piece_s: float = 0.0,
    ) -> None:
        """Begins with nobody at work.

        Args:
          line: what is to be computed.
          threads: of this worker; those that compute no call may help.
          share: calls computed at once that are this worker's share of the cores.
          occupancy: more at once are computed while cores are idle.
          compute: computes jobs, in any thread; raises nothing.
          turned: computes jobs on the loop and tells whoever waits.
          told: tells, on the loop, whoever waits for jobs that a thread computed.
          piece_s: about how long a piece of a large call takes, seconds; 0: none is divided.
        """
        self._line, self._threads, self._share, self._occupancy = line, threads, share, occupancy
        self._compute, self._turned, self._told = compute, turned, told
        self._loop: asyncio.AbstractEventLoop | None = None
        self.piece_s = piece_s
        self._at_work = 0  # threads that were called and have not ended
        self._helping, self._keeping = 0, threading.Lock()
        self._turn_due = self._just_turned = False
        self._loop_first, self._kept_waiting = True, 0.0

    def added(self, job: AnyJob) -> None:
        """Tells of a job that was put in line."""
        if self._loop is not job.loop:
            self._loop, self._turn_due = job.loop, False
        idle = self._occupancy.idle_beside(self._own)
        if self._loop_first:  # it came while the loop computed, and a core was idle beside that
            kept_waiting = self._just_turned and idle > (not self._turn_due)
        else:  # it would have, had the loop computed
            kept_waiting = self._at_work > 0 and idle > 0
        self._kept_waiting += (kept_waiting - self._kept_waiting) * _NEWS
        if self._kept_waiting > _OFTEN:
            self._loop_first = False
        elif self._kept_waiting < _SELDOM:
            self._loop_first = True
        self._call(job.loop)

    @property
    def _own(self) -> int:
        """How many are at work here, or about to be."""
        return self._at_work + self._turn_due

    def _call(self, loop: asyncio.AbstractEventLoop) -> None:
        """Calls as many to the line as have work there and a core."""
        begun = self._line.busy
        waiting = len(self._line) - max(0, self._at_work - begun) - self._turn_due
        while waiting > 0 and (self._call_loop(loop) if self._loop_first else self._call_thread()):
            waiting -= 1
        while waiting > 0 and (self._call_thread() if self._loop_first else self._call_loop(loop)):
            waiting -= 1
        self._keep(0)

    def idle(self) -> bool:
        """See Helpers.idle."""
        return self._idle > 0

    def call(self, pieces: Pieces) -> None:
        """See Helpers.call."""
        # Of the pieces that are left each helper is to find one, and so is whoever calls.
        for _ in range(min(pieces.left, self._idle)):
            self._keep(1)
            self._threads.submit(functools.partial(self._help, pieces))

    @property
    def _idle(self) -> int:
        """How many threads could help, with a core each that nobody keeps at work; below 0: some had better not."""
        if len(self._line):
            return -1
        own = self._own + self._helping
        return min(self._threads.count - self._at_work - self._helping, self._occupancy.idle_beside(own))

    def _help(self, pieces: Pieces) -> None:
        """Helps until there is something better to do. In a compute thread."""
        try:
            pieces.help(lambda: self._idle >= 0)
        finally:
            self._keep(-1)

    def _keep(self, more: int) -> None:
        """Tells the other workers how many are at work, so many more helpers among them. In any thread."""
        with self._keeping:
            self._helping += more
            self._occupancy.keep(self._own + self._helping)

    def _call_loop(self, loop: asyncio.AbstractEventLoop) -> bool:
        if self._turn_due or not self._line.first_on_loop or not self._room():
            return False
        self._turn_due = True
        self._listen(loop, _ROUNDS_MAX, 0.0)
        return True

    def _call_thread(self) -> bool:
        if self._at_work >= self._share or not self._line.first_in_thread or not self._room():
            return False
        self._at_work += 1
        self._threads.submit(self._in_thread)
        return True

    def _room(self) -> bool:
        """Whether one more may be at work: within the share of this worker, or on a core that others leave idle."""
        return self._own < self._share or self._occupancy.idle_beside(self._own) > 0

    def _listen(self, loop: asyncio.AbstractEventLoop, rounds: int, before_s: float) -> None:
        """Has the loop hear what has come, which while it computes it cannot; then it is its turn."""
        now = time.perf_counter()
        if rounds and now - before_s > _QUIET_S:
            loop.call_soon(self._listen, loop, rounds - 1, now)
        else:
            self._turn()

    def _turn(self) -> None:
        loop = asyncio.get_running_loop()
        self._just_turned = True
        loop.call_soon(loop.call_soon, self._looked)
        try:
            if self._line.first_on_loop and (jobs := self._line.take()):
                try:
                    self._turned(jobs)
                finally:
                    self._line.ended(jobs)
        finally:  # whatever failed, the next turn comes
            self._turn_due = False
            self._call(loop)

    def _looked(self) -> None:
        """The sockets were looked at since the last turn: what comes from now on has not waited for it."""
        self._just_turned = False

    def _in_thread(self) -> None:
        """Computes what is in line for as long as there is something, and a core. In a compute thread."""
        goes_on = True
        while goes_on:
            jobs = self._line.take()
            if jobs:
                try:
                    self._compute(jobs)
                finally:
                    self._line.ended(jobs)
            goes_on = self._goes_on()
            self._tell_loop(jobs, not goes_on)

    def _goes_on(self) -> bool:
        """Whether a thread has more to do. Where the loop comes first and has no turn, the next job is the loop's: else
        the two would hand each other the interpreter's lock for as long as the line is not empty."""
        if not self._line.first_in_thread or (self._loop_first and not self._turn_due and self._line.first_on_loop):
            return False
        return self._own <= self._share or self._occupancy.idle_beside(self._own) >= 0

    def _tell_loop(self, jobs: Sequence[AnyJob], ended: bool) -> None:
        try:
            assert self._loop is not None  # noqa: S101 - whoever called had one
            self._loop.call_soon_threadsafe(self._computed, jobs, ended)
        except RuntimeError:  # the loop is closed: nobody waits any more
            self._at_work -= ended
            for job in jobs:
                job.release()

    def _computed(self, jobs: Sequence[AnyJob], ended: bool) -> None:
        self._at_work -= ended
        self._told(jobs)
        self._call(asyncio.get_running_loop())
