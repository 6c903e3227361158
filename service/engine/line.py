"""The line of calls that are to be computed: first come, first served; what nobody waits for any more leaves it.

In the order of arrival, and not of deadlines, since a call is let in only if it can be answered in time behind those
that are there: nothing that comes later may take that away from it.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from itertools import islice
from typing import Any

from service.engine import company
from service.engine.jobs import Job

AnyJob = Job[Any, Any]

_FORGOTTEN = 0.95
"""What is left of what was seen of earlier jobs with each one that ends."""
_SLOW_MAX = 4.0
"""Times what its jobs take that the line is believed to take."""


class Line:
    """Jobs that wait, and how long those before a new one will take. Safe to call from any thread.

    Attributes:
      wait_s: how long a job that comes now will wait, by how long those before it usually take, seconds. Refused calls
        ask for it far more often than it changes.
    """

    def __init__(self, threads: int, clock: Callable[[], float] = time.perf_counter) -> None:
        """Begins with no job; about so many are computed at once."""
        self._threads, self._clock = threads, clock
        self._lock = threading.Lock()
        self._jobs: OrderedDict[AnyJob, Hashable | None] = OrderedDict()
        self._alike: dict[Hashable, OrderedDict[AnyJob, None]] = {}
        self._candidates = self._busy = 0
        self._waiting_s = self._computed_s = 0.0
        self._went_on: float | None = None
        self._elapsed_s = self._expected_s = 0.0
        self.wait_s = 0.0

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def candidates(self) -> int:
        """Candidates of the jobs that wait."""
        return self._candidates

    @property
    def busy(self) -> int:
        """How many compute what they took, and have not told `ended`."""
        return self._busy

    @property
    def first_on_loop(self) -> bool:
        """Whether a job waits, and the event loop may compute the first."""
        with self._lock:
            return next((job.on_loop for job in self._jobs), False)

    @property
    def first_in_thread(self) -> bool:
        """Whether a job waits, and a compute thread is to be called for the first."""
        with self._lock:
            return next((job.in_thread for job in self._jobs), False)

    @property
    def _room(self) -> bool:
        """Whether the next job is taken up at once."""
        return self._busy + len(self._jobs) < self._threads

    def add(self, job: AnyJob) -> None:
        """Puts a job at the end of the line."""
        # A job that is taken up at once needs no company, and what it is alike is not free to tell.
        alike = None if self._room else company.likeness(job)
        with self._lock:
            self._jobs[job] = alike
            if alike is not None:
                self._alike.setdefault(alike, OrderedDict())[job] = None
            self._candidates += job.candidates
            self._waiting_s += job.expected_s
            self._judge()

    def take(self) -> list[AnyJob]:
        """Takes the first job, with some of those that it can be computed with; empty: none waits.

        Whoever takes jobs tells `ended` after them.
        """
        with self._lock:
            if not self._jobs:
                return []
            first, alike = next(iter(self._jobs.items()))
            jobs = [first]
            if alike is not None:
                # The other threads are about to come for theirs: none is to be left without work.
                share = -(-len(self._alike[alike]) // self._threads)
                jobs = list(islice(self._alike[alike], min(share, company.joined_max(first))))
            for job in jobs:
                self._leave(job)
                self._computed_s += job.expected_s
            self._busy += 1
            self._judge()
        return jobs

    def ended(self, jobs: list[AnyJob]) -> None:
        """Tells that a thread is done with the jobs it took at once."""
        expected_s, now = sum([job.expected_s for job in jobs]), self._clock()
        with self._lock:
            self._busy -= 1
            self._computed_s -= expected_s
            if not self._busy:
                self._computed_s = 0.0  # what adding and subtracting left
            if self._went_on is not None:  # some waited all the time since others ended
                self._elapsed_s = self._elapsed_s * _FORGOTTEN + (now - self._went_on) * self._threads
                self._expected_s = self._expected_s * _FORGOTTEN + expected_s
            self._went_on = now if self._jobs else None
            self._judge()

    def drop(self, job: AnyJob) -> bool:
        """Takes a job out if it still waits; tells whether it did."""
        with self._lock:
            if job not in self._jobs:
                return False
            self._leave(job)
            self._judge()
        return True

    def _leave(self, job: AnyJob) -> None:
        alike = self._jobs.pop(job)
        if alike is not None:
            self._alike[alike].pop(job)
            if not self._alike[alike]:
                del self._alike[alike]
        self._candidates -= job.candidates
        self._waiting_s = self._waiting_s - job.expected_s if self._jobs else 0.0

    def _judge(self) -> None:
        """Finds out how long the line takes now; under the lock."""
        if self._room:
            self.wait_s = 0.0
            return
        seen = self._elapsed_s > self._expected_s > 0  # who computes jobs refuses others, too, and answers
        slow = min(_SLOW_MAX, self._elapsed_s / self._expected_s) if seen else 1.0
        self.wait_s = slow * (self._waiting_s + self._computed_s / 2) / self._threads  # those in threads are half done
