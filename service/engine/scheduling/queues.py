"""What waits: jobs and batches, for the event loop, a compute thread or other processes; and the
sweep over jobs whose deadline passes or whose client leaves.
"""

from __future__ import annotations

import asyncio
import functools
import math
import resource
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from service.engine.computation import Computation, RemoteCall, Resume
from service.engine.context import RequestContext
from service.errors import Cancelled, DeadlineExceeded
from service.versions.lifecycle import Lease

CLIENT_GONE = "the client has disconnected"
DEADLINE_PASSED = "the deadline of the request has passed"
_LONG_BATCH_MAX_S = 0.005
"""Maximum expected time of a batch of several requests in a compute thread, in seconds. Requests
share about 0.15 ms of work each, so that longer batches gain little, and the first request would
wait for the last.
"""
_LONG_BATCH_COST_MAX = 320
"""Maximum cost, in candidates, of such a batch. Further rows of a ranking tower gain nothing once
they outgrow a core's cache of 1 or 2 MiB: two rankings of 200 candidates by workload R took 10 %
more CPU time together than alone.
"""
_SHORT_BATCH_MAX_S = 0.002
"""Maximum expected time of a batch on the event loop, which turns to nothing else meanwhile. It is
several times what one request may take there: what is expected of a request is its share of earlier
batches, so that a limit near that of one request would keep small batches small.
"""
_SHORT_BATCH_COST_MAX = 4096
"""Maximum cost, in candidates, of such a batch."""
_SWEEP_INTERVAL_S = 0.005
"""Time between two looks at all unanswered requests, in seconds. A shorter interval notices a
deadline earlier; a longer one takes less of the loop. One sweep replaces a timer for each request.
"""
_SWEEPS_BEFORE_WATCHING = 4
"""Number of sweeps that a request waits before its connection is watched. Watching takes a task of
its own, which most requests end too early to need.
"""


@dataclass(eq=False, slots=True)
class Job:
    """A request between its admission and its result.

    Attributes:
      kind: The kind of the request: requests of one kind take about equally long.
      group: The model and the call, which are known before the request is decoded.
      cost: The cost in candidates; a query or example counts as one.
      find_key: Returns the batch key: requests with equal keys can be computed as one batch; None:
        this one is computed alone.
      future: The future that gets the result.
      expected_s: The time that its computation is expected to take.
      predicted_s: The time that it would wait if nothing but the queue took time.
      queued_at: The time at which it was queued, on the scheduler's clock.
      sweeps: The number of sweeps that it has seen.
      watcher: The task that ends when the client has hung up; None: the connection is not watched.
      queue_key: What the queue has it under, once another job waits there: its batch key, or a
        number of its own.
    """

    request: Any
    context: RequestContext
    lease: Lease
    kind: Hashable
    group: tuple[str, str]
    cost: int
    find_key: Callable[[], Hashable]
    future: asyncio.Future[Any]
    expected_s: float = 0.0
    predicted_s: float = 0.0
    queued_at: float = 0.0
    sweeps: int = 0
    watcher: asyncio.Future[object] | None = None
    queue_key: Hashable = None


class Batch:
    """Jobs that are computed as one, in steps: after each, other processes are called.

    Attributes:
      jobs: The jobs; all wait for a result when the first step begins.
      expected_s: The time that all steps are expected to take.
      on_loop: Whether the event loop computes it; else compute threads do.
      seconds: The time that the steps so far took.
      results: The result or the ServiceError of each job, after the last step.
    """

    def __init__(
        self, jobs: Sequence[Job], computation: Computation[Sequence[Any]], on_loop: bool
    ) -> None:
        self.jobs = jobs
        self.expected_s = sum([job.expected_s for job in jobs])
        self.on_loop = on_loop
        self.seconds = 0.0
        self.results: Sequence[Any] = ()
        self._computation = computation
        self._resume: Resume = functools.partial(computation.send, None)

    def step(self) -> RemoteCall[Any] | None:
        """Computes to the next call of other processes, and adds the time that it takes; None: the
        batch is complete.
        """
        began = time.perf_counter()
        began_cpu = time.thread_time()
        faults = _major_faults()
        call = None
        try:
            call = self._resume()
        except StopIteration as end:
            self.results = end.value
        # Time in which other threads held the GIL and the cores is no cost of the batch; time that
        # a disk took is.
        if _major_faults() > faults:
            self.seconds += time.perf_counter() - began
        else:
            self.seconds += time.thread_time() - began_cpu
        return call

    def receive(self, call: asyncio.Future[Any]) -> None:
        """Prepares the next step with the result of a call, or with its failure."""
        problem = call.exception()
        if problem is None:
            self._resume = functools.partial(self._computation.send, call.result())
        else:
            self._resume = functools.partial(self._computation.throw, problem)


class BatchQueue:
    """Jobs in order of arrival; a batch takes the first one, and later ones with the same key.

    Attributes:
      size: The number of jobs.
      cost: The sum of their costs, in candidates.
      expected_s: The sum of their expected times.
    """

    def __init__(
        self, batch_max: int, expected_max_s: float = math.inf, cost_max: float = math.inf
    ) -> None:
        """Creates an empty queue.

        Args:
          batch_max: Maximum number of jobs in one batch.
          expected_max_s: Maximum sum of the expected times of a batch of several jobs.
          cost_max: Maximum sum of the costs of a batch of several jobs.
        """
        self._batch_max = batch_max
        self._expected_max_s = expected_max_s
        self._cost_max = cost_max
        # A dict is an ordered set here: a job whose client leaves is removed from the middle.
        self._jobs: OrderedDict[Hashable, dict[Job, None]] = OrderedDict()
        self._lone_job: Job | None = None
        """The only job that waits, while no second one has needed its key."""
        self.size = 0
        self.cost = 0
        self.expected_s = 0.0

    def __iter__(self) -> Iterator[Job]:
        lone_jobs = []
        if self._lone_job is not None:
            lone_jobs.append(self._lone_job)
        return chain(lone_jobs, chain.from_iterable(self._jobs.values()))

    def add(self, job: Job) -> None:
        """Appends a job."""
        # In an idle process nothing else waits, and a key would be found in vain.
        if not self.size:
            self._lone_job = job
        else:
            if self._lone_job is not None:
                self._insert(self._lone_job)
                self._lone_job = None
            self._insert(job)
        self._count(job, 1)

    def take(self) -> list[Job]:
        """Removes and returns the first batch; an empty list if nothing waits."""
        if self._lone_job is not None:
            lone_job = self._lone_job
            self._lone_job = None
            self._count(lone_job, -1)
            return [lone_job]
        if not self._jobs:
            return []
        batch: list[Job] = []
        expected_s = 0.0
        cost = 0
        key = next(iter(self._jobs))
        same_key_jobs = self._jobs[key]

        for job in islice(same_key_jobs, self._batch_max):
            expected_s += job.expected_s
            cost += job.cost
            # The first job is taken whatever it costs: else it would wait forever.
            if batch and (expected_s > self._expected_max_s or cost > self._cost_max):
                break
            batch.append(job)

        for job in batch:
            del same_key_jobs[job]
            self._count(job, -1)
        if not same_key_jobs:
            del self._jobs[key]
        return batch

    def remove(self, job: Job) -> bool:
        """Removes a job if it still waits; returns whether it did."""
        if job is self._lone_job:
            self._lone_job = None
            self._count(job, -1)
            return True
        same_key_jobs = self._jobs.get(job.queue_key, {})
        if job not in same_key_jobs:
            return False
        del same_key_jobs[job]
        self._count(job, -1)
        if not same_key_jobs:
            del self._jobs[job.queue_key]
        return True

    def _insert(self, job: Job) -> None:
        # Two of this cost would be too much for a batch.
        key = None
        if 2 * job.cost <= self._cost_max:
            key = job.find_key()
        # Without a key it is a batch of its own: no other job has its number.
        if key is None:
            key = id(job)
        job.queue_key = key
        self._jobs.setdefault(key, {})[job] = None

    def _count(self, job: Job, sign: int) -> None:
        self.size += sign
        self.cost += sign * job.cost
        # An empty queue is expected to take exactly 0: rounding errors of the sums would add up,
        # and an idle process would seem busy.
        if self.size:
            self.expected_s += sign * job.expected_s
        else:
            self.expected_s = 0.0


class Queues:
    """What waits, by what it waits for, and what compute threads work on.

    Attributes:
      inline: The jobs that are expected to be short, which wait for the event loop.
      long: The long jobs, and those of a kind that was not computed yet, which wait for a thread.
      resumed: Long batches whose call has ended, which wait for a thread again.
      suspended: Batches that wait for other processes, by their call.
      running_s: The expected time of the batches that compute threads work on.
    """

    def __init__(
        self, batch_max: int, inline_max_s: float, alone_max_s: float, threads: int
    ) -> None:
        """Creates empty queues.

        Args:
          batch_max: Maximum number of jobs in one batch.
          inline_max_s: Maximum expected time of a job that is computed on the event loop.
          alone_max_s: The same while requests come one after the other.
          threads: The number of compute threads.
        """
        short_batch_max_s = max(inline_max_s, _SHORT_BATCH_MAX_S)
        self.inline = BatchQueue(batch_max, short_batch_max_s, _SHORT_BATCH_COST_MAX)
        self.long = BatchQueue(batch_max, _LONG_BATCH_MAX_S, _LONG_BATCH_COST_MAX)
        self.resumed = deque[Batch]()
        self.suspended: dict[asyncio.Future[Any], Batch] = {}
        self.running_s = 0.0
        self._inline_max_s = inline_max_s
        self._alone_max_s = alone_max_s
        self._threads = threads

    def __iter__(self) -> Iterator[Job]:
        """Returns the jobs that were not begun yet."""
        return chain(self.inline, self.long)

    @property
    def wants_thread(self) -> bool:
        """Whether a batch waits for a compute thread."""
        return bool(self.resumed or self.long.size)

    @property
    def cost(self) -> int:
        """The cost of the jobs that wait for the event loop or a thread."""
        return self.inline.cost + self.long.cost

    @property
    def expected_s(self) -> float:
        """The time until all jobs that wait are computed, if nothing else took time."""
        # On average, half of what runs in the threads is done.
        threads_s = self.long.expected_s + self.running_s / 2
        return self.inline.expected_s + threads_s / self._threads

    def add(self, job: Job, estimate_s: float | None, is_alone: bool) -> None:
        """Appends a job to the queue that fits its estimate.

        Args:
          job: The job.
          estimate_s: The time that its computation is expected to take; None: nothing is known of
            its kind.
          is_alone: Whether no other request would wait for the event loop meanwhile.
        """
        inline_max_s = self._inline_max_s
        if is_alone:
            inline_max_s = self._alone_max_s
        if estimate_s is not None and estimate_s <= inline_max_s:
            self.inline.add(job)
        else:
            self.long.add(job)

    def remove(self, job: Job) -> bool:
        """Removes a job if it still waits; returns whether it did."""
        return self.inline.remove(job) or self.long.remove(job)

    def take_all(self) -> list[Job]:
        """Removes and returns all jobs that wait, begun or not; cancels the calls of batches."""
        # The calls' callbacks run later and find their batches gone.
        batches = [*self.suspended.values(), *self.resumed]
        for call in self.suspended:
            call.cancel()
        self.suspended.clear()
        self.resumed.clear()
        jobs = [job for batch in batches for job in batch.jobs]
        for queue in (self.inline, self.long):
            while batch_jobs := queue.take():
                jobs += batch_jobs
        return jobs


class Sweep:
    """Looks over all unanswered jobs at an interval, queued or not, and drops those whose deadline
    has passed or whose client has hung up.
    """

    def __init__(
        self,
        drop: Callable[[Job, DeadlineExceeded | Cancelled], None],
        clock: Callable[[], float],
    ) -> None:
        """Creates a sweep over no jobs.

        Args:
          drop: Ends the wait for a job with an error.
          clock: Returns the current monotonic time in seconds.
        """
        self._drop = drop
        self._clock = clock
        self._jobs: dict[Job, None] = {}
        self._running = False

    @property
    def has_jobs(self) -> bool:
        """Whether a job has no result yet."""
        return bool(self._jobs)

    def add(self, job: Job) -> None:
        """Looks over a job from now on."""
        self._jobs[job] = None
        if not self._running:
            self._running = True
            asyncio.get_running_loop().call_later(_SWEEP_INTERVAL_S, self._sweep)

    def remove(self, job: Job) -> None:
        """Leaves a job alone from now on: it has its result."""
        del self._jobs[job]
        if job.watcher is not None:
            job.watcher.cancel()

    def _sweep(self) -> None:
        # The last sweep is the one that sees no jobs: an idle process has no timer.
        self._running = bool(self._jobs)
        if not self._running:
            return
        now = self._clock()
        for job in list(self._jobs):
            if now >= job.context.deadline:
                self._drop(job, DeadlineExceeded(DEADLINE_PASSED))
            elif job.sweeps == _SWEEPS_BEFORE_WATCHING and job.context.disconnected is not None:
                job.watcher = asyncio.ensure_future(job.context.disconnected())
                job.watcher.add_done_callback(functools.partial(self._hung_up, job))
            job.sweeps += 1
        asyncio.get_running_loop().call_later(_SWEEP_INTERVAL_S, self._sweep)

    def _hung_up(self, job: Job, watcher: asyncio.Future[object]) -> None:
        # `remove` cancels the watcher of a job that has its result.
        if not watcher.cancelled():
            self._drop(job, Cancelled(CLIENT_GONE))


def _major_faults() -> int:
    """Returns how often the calling thread has waited for a page from a disk."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
