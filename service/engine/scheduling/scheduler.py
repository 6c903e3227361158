"""When and where requests are computed.

1. A request is rejected at once if the queue is full, or if its deadline leaves less than twice the
   expected time.
2. Requests that arrive in two turns of the event loop, or while the process is busy, and that share
   a batch key are computed as one batch, up to 16. No request waits for others: an idle process
   computes at once.
3. A batch that is expected to be short is computed on the event loop; a long one in the compute
   pool. Neither waits for a network: the batch is put aside while other processes are called.
4. Before a batch is computed, requests whose deadline passed or whose client left are dropped, each
   by itself.
5. Every request gets the bits that it would get alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import resource
import time
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import chain
from typing import Any

from service.engine.computation import Computation, RemoteCall
from service.engine.scheduling.batching import Batch, BatchQueue, Job
from service.engine.scheduling.compute_pool import ComputePool
from service.errors import Cancelled, DeadlineExceeded, NotReady, Overloaded, ServiceError
from service.observability.metrics import Metrics

_SWEEP_S = 0.005
"""Interval at which all unanswered requests are looked over, instead of a timer for each."""
_WATCHED_FROM = 4
"""Sweeps that a request waits before its connection is watched: that takes a task of its own."""
_MARGIN = 2
"""Times what is expected, which is an average: with less, a long queue is answered just after the
deadlines.
"""
_DELAY_MAX = 16.0
"""Largest factor by which waits are expected to be longer than the sum of the estimates."""
_DELAY_EWMA = 0.1
_PREDICTION_MIN_S = 0.001
"""Shorter predictions count as this one: a turn of the event loop is not a slow queue."""
_COMPUTE_SHARE = 0.5
"""Share of the event loop's time that queued batches get, whatever else fills its turns."""
_TURN_MAX_S = 0.05
"""Maximum time of one turn in which further batches are begun."""
_OVERLOAD_S = 0.1
"""Time after a rejection in which the process counts as overloaded."""
_ACCEPT_S = 0.0005
"""Time within which gRPC accepts the next call if one waits: it takes several turns of the loop."""
_COMPUTE_SHARE_MIN = 0.2
"""Share of the time that batches get at least while gRPC accepts and rejects one call after the
other.
"""
_LONG_BATCH_S = 0.005
"""Maximum expected time of a batch of several requests in a compute thread. Requests share about
0.15 ms of work each, so that longer ones gain little, and the first would wait for the last.
"""
_BATCH_COST_MAX = 4096
"""Maximum cost of a batch of several requests, of a kind whose time is not known yet."""
_ESTIMATE_EWMA = 0.1
_KINDS_MAX = 4096
"""Kinds whose estimates are kept."""
_GONE = "the client has disconnected"
_LATE = "the deadline of the request has passed"
_STOPPING = "the service is shutting down"
_QUEUE_FULL = "the queue has no room for the request (max_queued_candidates)"
_TOO_LATE = "the response would miss the deadline of the request"


class LatencyEstimates:
    """Exponentially weighted averages of how long a job takes, by kind."""

    def __init__(self) -> None:
        self._seconds: dict[Hashable, float] = {}

    def expected_s(self, kind: Hashable) -> float | None:
        """Returns the estimate; None: no job of the kind was computed yet."""
        return self._seconds.get(kind)

    def observe(self, kind: Hashable, seconds: float, times: int = 1) -> None:
        """Takes a measurement into account, as often as it was made."""
        before = self._seconds.pop(kind, None)
        if before is None and len(self._seconds) >= _KINDS_MAX:
            # The one that was not observed for the longest time makes room.
            del self._seconds[next(iter(self._seconds))]
        share = 1 - (1 - _ESTIMATE_EWMA) ** times
        self._seconds[kind] = seconds if before is None else before + share * (seconds - before)


Compute = Callable[[Sequence[Job], ComputePool | None], Computation[Sequence[Any]]]
"""Returns the computation of a batch, for any thread: the answer or the ServiceError of each
job.
"""


class Scheduler:
    """Runs jobs by the rules above. Its methods run on one event loop.

    Attributes:
      estimates: how long jobs take, by kind and by group.
    """

    def __init__(
        self,
        compute: Compute,
        pool: ComputePool,
        metrics: Metrics,
        *,
        inline_max_s: float,
        max_queued_candidates: int,
        retry_after_s: float,
        batch_max: int = 16,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Creates a scheduler without jobs.

        Args:
          compute: computes a batch.
          pool: computes long batches.
          inline_max_s: longest batch that is computed on the event loop.
          max_queued_candidates: cost of the jobs that may wait.
          retry_after_s: least retry-after of a rejected request.
          batch_max: jobs in one batch.
          clock: Returns the current monotonic time in seconds.
        """
        self._compute = compute
        self._pool = pool
        self._metrics = metrics
        self._clock = clock
        self._inline_max_s = inline_max_s
        self._max_cost = max_queued_candidates
        self._retry_after_s = retry_after_s
        self._inline = BatchQueue(batch_max, inline_max_s, _BATCH_COST_MAX)
        self._long = BatchQueue(batch_max, _LONG_BATCH_S, _BATCH_COST_MAX)
        self.estimates = LatencyEstimates()
        self._cost = LatencyEstimates()
        self._resumed = deque[Batch]()
        self._calling: dict[asyncio.Future[Any], Batch] = {}
        self._running_s = 0.0
        self._delay_factor = 1.0
        self._turn_s = 0.0
        self._woken_at = -math.inf
        self._dispatching = False
        self._unanswered: dict[Job, None] = {}
        self._sweeping = False
        self._yielded_at: float | None = None
        self._overloaded_at = -math.inf
        self._accepted_at = -math.inf
        self._computed_at = -math.inf
        self._computed_s = 0.0

    def queued(self) -> Iterator[Job]:
        """Returns the jobs that wait."""
        return chain(self._inline, self._long)

    @property
    def queued_cost(self) -> int:
        """Cost of the jobs that wait."""
        return self._inline.cost + self._long.cost

    @property
    def wait_s(self) -> float:
        """How long a job that arrives now is expected to wait, as the jobs before it did.

        Rejections, decoding and other processes take their part of the core, which the estimates of
        computations do not contain.
        """
        if not self._unanswered and not self._running_s:
            return 0.0
        return self._wait_behind_s(self._queued_s)

    def _wait_behind_s(self, queued_s: float) -> float:
        """Returns how long a job waits behind others that are expected to take `queued_s`: until
        the loop turns to them, and then for them.
        """
        if not queued_s:
            return 0.0
        return self._turn_s + max(1.0, self._delay_factor) * queued_s

    @property
    def _queued_s(self) -> float:
        """How long the jobs in the queue and half of those in the pool are expected to take."""
        return (
            self._inline.expected_s
            + (self._long.expected_s + self._running_s / 2) / self._pool.threads
        )

    def overload(self, model: str, call: str, deadline: float) -> Overloaded | None:
        """Returns why a request should be rejected before it is decoded, by what requests of its
        model and call usually cost and take; None: it should not.

        Args:
          model: its name; "": not known yet, so that the queue alone decides.
          call: The call.
          deadline: On the clock of the scheduler.
        """
        wait_s = self.wait_s
        group = (model, call)
        expected_s = self.estimates.expected_s(group) or 0.0
        now = self._clock()
        if not wait_s and not self.queued_cost:
            if now + _MARGIN * expected_s > deadline:  # it waited elsewhere
                self._overloaded_at = now
            return None
        # An average of other requests alone does not keep one from a queue that is half empty.
        cost = min(int(self._cost.expected_s(group) or 0), self._max_cost // 2)
        return self._overload(cost, wait_s, expected_s, deadline, now)

    def call_accepted(self) -> None:
        """Notes that gRPC accepted a call, behind which others may wait to be accepted."""
        self._accepted_at = self._clock()

    async def run(self, job: Job) -> Any:
        """Returns the answer of a job; the job's lease is released once it is computed or dropped.

        Raises:
          Overloaded: it is rejected.
          ServiceError: it failed.
        """
        try:
            self._submit(job)
        except BaseException:
            job.lease.release()
            raise
        self._unanswered[job] = None
        if not self._sweeping:
            self._sweeping = True
            asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)
        try:
            return await job.future
        except asyncio.CancelledError:
            self._drop(job, Cancelled(_GONE))
            raise
        finally:
            del self._unanswered[job]
            if job.watcher is not None:
                job.watcher.cancel()

    def close(self) -> None:
        """Fails every job that waits, for its turn or for other processes; ends the compute
        threads.
        """
        for call, batch in self._calling.items():
            call.cancel()
            self._resumed.append(batch)
        self._calling.clear()
        while self._resumed:
            self._abandon(self._resumed.popleft().jobs)
        for queue in (self._inline, self._long):
            while jobs := queue.take():
                self._abandon(jobs)
        self._pool.close()

    def _overload(
        self, cost: int, wait_s: float, expected_s: float, deadline: float, now: float
    ) -> Overloaded | None:
        waiting = self.queued_cost
        if waiting and waiting + cost > self._max_cost:
            return self._overloaded(_QUEUE_FULL, wait_s, "queue")
        # The time of a turn is measured; only computations may take longer than expected.
        expected_end = now + _MARGIN * (wait_s + expected_s) - self._turn_s
        if wait_s and expected_end > deadline:
            return self._overloaded(_TOO_LATE, wait_s, "deadline")
        return None

    def _overloaded(self, message: str, wait_s: float, reason: str) -> Overloaded:
        self._overloaded_at = self._clock()
        return Overloaded(message, max(self._retry_after_s, math.ceil(wait_s * 100) / 100), reason)

    def _sweep(self) -> None:
        """Drops the requests whose deadline has passed, queued or not, and begins to watch the
        connections of those that wait long.
        """
        self._sweeping = bool(self._unanswered)
        if not self._sweeping:
            return
        now = self._clock()
        for job in list(self._unanswered):
            if now >= job.context.deadline:
                self._drop(job, DeadlineExceeded(_LATE))
            elif job.sweeps == _WATCHED_FROM and job.context.disconnected is not None:
                job.watcher = asyncio.ensure_future(job.context.disconnected())
                job.watcher.add_done_callback(functools.partial(self._hung_up, job))
            job.sweeps += 1
        asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)

    def _submit(self, job: Job) -> None:
        now = self._clock()
        estimate_s = self.estimates.expected_s(job.kind)
        expected_s = estimate_s or 0.0
        queued_s = self._queued_s
        wait_s = self._wait_behind_s(queued_s)
        deadline = job.context.deadline
        problem = self._overload(job.cost, wait_s, expected_s, deadline, now)
        if problem is not None:
            raise problem
        if not wait_s and now + _MARGIN * expected_s > deadline:  # it waited elsewhere
            self._overloaded_at = now
        job.expected_s = expected_s
        job.predicted_s = queued_s
        job.queued_at = now
        short = estimate_s is not None and estimate_s <= self._inline_max_s
        queue = self._inline if short else self._long
        queue.add(job)
        self._wake(now)

    def _wake(self, now: float) -> None:
        if not self._dispatching:
            self._dispatching = True
            self._woken_at = now
            loop = asyncio.get_running_loop()
            if self._is_overloaded(now):  # enough has arrived for a batch, and turns are long
                loop.call_soon(self._dispatch)
            else:
                # A turn later: what has arrived meanwhile joins the batch.
                loop.call_soon(loop.call_soon, self._dispatch)

    def _dispatch(self) -> None:
        """Submits long batches to idle threads and computes short ones: one, so that the loop stays
        responsive, or more if the turns since the last one took longer than it.
        """
        began = self._clock()
        if self._calls_wait_in_grpc(began):
            asyncio.get_running_loop().call_soon(self._dispatch)
            return
        self._dispatching = False
        self._turn_s += _DELAY_EWMA * (began - self._woken_at - self._turn_s)
        if self._thread_is_wanted():
            loop = asyncio.get_running_loop()
            self._pool.when_idle = functools.partial(self._thread_is_idle, loop)
        while self._thread_is_wanted() and self._pool.idle > 0:
            if self._resumed:
                self._compute_in_thread(self._resumed.popleft())
                continue
            alive = self._alive(self._long.take(), self._clock())
            if alive:
                self._compute_in_thread(Batch(alive, self._compute(alive, self._pool), False))
        now = began
        end = began + self._guaranteed_s(began)
        while self._inline.size:
            self._compute_inline(self._inline.take(), now)
            now = self._clock()
            self._computed_at = now
            self._computed_s = now - began
            if now >= end:
                break
        if self._inline.size or (self._thread_is_wanted() and self._pool.idle > 0):
            self._yielded_at = now
            self._wake(now)
        else:
            self._yielded_at = None

    def _is_overloaded(self, now: float) -> bool:
        """Returns whether a request was rejected a short while ago."""
        return now < self._overloaded_at + _OVERLOAD_S

    def _calls_wait_in_grpc(self, now: float) -> bool:
        """Returns whether calls should be accepted before the next batch begins.

        gRPC accepts one call at a time, in several turns of the loop. With a batch in each turn,
        calls would wait there until their deadlines, where nobody can reject them.
        """
        accepting = now < self._accepted_at + _ACCEPT_S
        share_s = self._computed_s * (1 / _COMPUTE_SHARE_MIN - 1)
        return accepting and self._is_overloaded(now) and now < self._computed_at + share_s

    def _guaranteed_s(self, now: float) -> float:
        """Returns how long batches may be computed in this turn, so that they get their share."""
        if self._yielded_at is None:  # no batch waited for the loop meanwhile
            return 0.0
        elsewhere_s = now - self._yielded_at
        return min(_TURN_MAX_S, elsewhere_s * _COMPUTE_SHARE / (1 - _COMPUTE_SHARE))

    def _thread_is_wanted(self) -> bool:
        return bool(self._resumed or self._long.size)

    def _compute_inline(self, jobs: Sequence[Job], now: float) -> None:
        alive = self._alive(jobs, now)
        if alive:
            self._step_inline(Batch(alive, self._compute(alive, None), True), now)

    def _step_inline(self, batch: Batch, began: float) -> None:
        call = batch.step()
        batch.seconds += self._clock() - began
        self._stepped(batch, call)

    def _compute_in_thread(self, batch: Batch) -> None:
        self._running_s += batch.expected_s
        self._pool.submit(
            functools.partial(self._step_measured, batch),
            functools.partial(self._hand_over, asyncio.get_running_loop(), batch),
        )

    def _stepped(self, batch: Batch, call: RemoteCall[Any] | None) -> None:
        """Makes the call that a batch waits for, or finishes the batch."""
        if call is None:
            self._finish(batch.jobs, batch.answers, batch.seconds)
            return
        task = asyncio.ensure_future(call.make())
        self._calling[task] = batch
        task.add_done_callback(self._called)

    def _called(self, call: asyncio.Future[Any]) -> None:
        """Continues the batch that waited for a call."""
        batch = self._calling.pop(call, None)
        if batch is None:  # the scheduler was closed
            return
        if call.cancelled():
            self._abandon(batch.jobs)
            return
        batch.receive(call)
        if batch.on_loop:
            self._step_inline(batch, self._clock())
        else:
            self._resumed.append(batch)
            self._wake(self._clock())

    def _alive(self, batch: Sequence[Job], now: float) -> list[Job]:
        """Drops the jobs that nobody waits for any more."""
        alive = list[Job]()
        for job in batch:
            self._observe_wait(job, now)
            if job.context.cancelled or job.future.done():
                self._settle(job, Cancelled(_GONE), "cancelled")
            elif now >= job.context.deadline:
                self._settle(job, DeadlineExceeded(_LATE), "expired")
            else:
                job.context.phases["queue"] = now - job.queued_at
                alive.append(job)
        return alive

    def _observe_wait(self, job: Job, now: float) -> None:
        """Corrects the delay factor by how long a job really waited."""
        predicted_s = max(_PREDICTION_MIN_S, job.predicted_s)
        factor = min(_DELAY_MAX, max(0.0, now - job.queued_at - self._turn_s) / predicted_s)
        self._delay_factor += _DELAY_EWMA * (factor - self._delay_factor)

    def _step_measured(self, batch: Batch) -> RemoteCall[Any] | None:
        """Computes a step in a compute thread; adds how long it would take on the loop."""
        began = time.perf_counter()
        cpu = time.thread_time()
        faults = _major_faults()
        call = batch.step()
        # Time that others held the GIL and the cores is no cost of the batch; time that a disk took
        # is.
        blocked = _major_faults() > faults
        batch.seconds += time.perf_counter() - began if blocked else time.thread_time() - cpu
        return call

    def _hand_over(
        self,
        loop: asyncio.AbstractEventLoop,
        batch: Batch,
        call: RemoteCall[Any] | None,
    ) -> None:
        """Passes what a compute thread did to the event loop."""
        try:
            loop.call_soon_threadsafe(self._stepped_in_thread, batch, call)
        except RuntimeError:  # the loop is closed: nobody waits any more
            for job in batch.jobs:
                job.lease.release()

    def _thread_is_idle(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wakes the event loop, from a compute thread, if a batch waits for one."""
        if self._thread_is_wanted():
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._wake, self._clock())

    def _stepped_in_thread(self, batch: Batch, call: RemoteCall[Any] | None) -> None:
        self._running_s = max(0.0, self._running_s - batch.expected_s)
        self._computed_at = self._clock()
        self._computed_s = batch.seconds / self._pool.threads
        self._stepped(batch, call)
        if self._inline.size or self._thread_is_wanted():
            self._wake(self._clock())

    def _finish(self, batch: Sequence[Job], answers: Sequence[Any], seconds: float) -> None:
        each_s = seconds / len(batch)
        self._metrics.observe("batch_requests", len(batch), batch[0].context.call)
        computed = defaultdict[Hashable, int](int)
        for job, answer in zip(batch, answers, strict=True):
            # A request that fails slowly must not stay a short one; one that is rejected at once
            # says nothing about those that are computed.
            failed = isinstance(answer, ServiceError)
            for kind in (job.kind, job.group):
                if not failed or self._is_slower(kind, each_s):
                    computed[kind] += 1
            if not failed:
                self._cost.observe(job.group, job.cost)
            self._settle(job, answer)
        for kind, times in computed.items():
            self.estimates.observe(kind, each_s, times)

    def _is_slower(self, kind: Hashable, seconds: float) -> bool:
        """Returns whether requests of a kind are expected to take less. Nothing is expected of a
        kind that never succeeded: names in it may be a client's.
        """
        expected_s = self.estimates.expected_s(kind)
        return expected_s is not None and seconds > expected_s

    def _hung_up(self, job: Job, watcher: asyncio.Future[object]) -> None:
        if not watcher.cancelled():
            self._drop(job, Cancelled(_GONE))

    def _drop(self, job: Job, problem: ServiceError) -> None:
        """Ends the wait for a job: at once if it is queued, else before its next expensive step."""
        job.context.cancelled = True
        reason = "expired" if isinstance(problem, DeadlineExceeded) else "cancelled"
        if self._inline.remove(job) or self._long.remove(job):
            if reason == "expired":  # it was admitted, so it was expected to wait for less
                self._observe_wait(job, self._clock())
            self._settle(job, problem, reason)
        elif not job.future.done():
            job.future.set_exception(problem)

    def _abandon(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._settle(job, NotReady(_STOPPING))

    def _settle(self, job: Job, answer: Any, rejected: str = "") -> None:
        """Gives a job its answer and releases what it holds."""
        job.lease.release()
        if rejected:
            self._metrics.call_rejected(job.context.call, job.lease.version.model, rejected)
        if job.future.done():
            return
        if isinstance(answer, ServiceError):
            job.future.set_exception(answer)
        else:
            job.future.set_result(answer)


def _major_faults() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
