"""When and where requests are computed.

1. A request is rejected at once if the queue is full, or if its deadline leaves less than twice the
   expected time.
2. Requests that arrive in two turns of the event loop, or while the process is busy, and that share
   a batch key are computed as one batch, up to 16. No request waits for others: an idle process
   computes at once, and where requests come one after the other, without any turn between.
3. Requests that are expected to be short are computed on the event loop, up to 2 ms if they come
   alone; long ones in the compute pool. Neither waits for a network: the batch is put aside while
   other processes are called.
4. Before a batch is computed, requests whose deadline passed or whose client left are dropped, each
   by itself.
5. Every request gets the bits that it would get alone.

Rule 1 is in `admission`; what waits, and what it joins or leaves, is in `queues`; when and where a
batch is computed is decided here.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from service.engine.computation import Computation, RemoteCall
from service.engine.scheduling.admission import Admission
from service.engine.scheduling.compute_pool import ComputePool
from service.engine.scheduling.queues import (
    CLIENT_GONE,
    DEADLINE_PASSED,
    Batch,
    Job,
    Queues,
    Sweep,
)
from service.errors import Cancelled, DeadlineExceeded, NotReady, Overloaded, ServiceError
from service.observability.metrics import Metrics

_QUEUE_SHARE = 0.5
"""Share of the event loop's time that queued batches get, whatever else fills its turns. With more,
requests are read and rejected later; with less, an overloaded service computes fewer of them.
"""
_TURN_MAX_S = 0.05
"""Maximum time of one turn in which further batches are begun, in seconds: bounds how long health
checks and other connections wait.
"""
_ALONE_AFTER_S = 0.05
"""Time without two requests at once, after which a request is computed in the turn in which it
arrives. With less, the pauses of concurrent clients would separate their batches.
"""
_ACCEPT_S = 0.0005
"""Time within which gRPC accepts the next call if one waits, in seconds: accepting takes about five
turns of the loop (ADR 46).
"""
_COMPUTE_SHARE_MIN = 0.2
"""Minimum share of the time that batches get while gRPC accepts and rejects one call after the
other (ADR 46). With less, hardly any response would leave an overloaded process; with more, calls
would pass their deadlines in gRPC's core, where nothing can reject them.
"""
_SHUTTING_DOWN = "the service is shutting down"

Compute = Callable[[Sequence[Job], ComputePool | None], Computation[Sequence[Any]]]
"""Returns the computation of a batch, for any thread: the result or the ServiceError of each
job.
"""


class LoopShare:
    """The time of the event loop that batches get beside all else that runs on it.

    Attributes:
      yielded_at: When the loop last did something else although a batch waited for it; None: none
        waits.
      accepted_at: When gRPC last accepted a call.
    """

    def __init__(self) -> None:
        self.yielded_at: float | None = None
        self.accepted_at = -math.inf
        self._computed_at = -math.inf
        self._computed_s = 0.0

    def observe(self, now: float, seconds: float) -> None:
        """Notes that batches were computed until now, and for how long."""
        self._computed_at = now
        self._computed_s = seconds

    def guaranteed_s(self, now: float) -> float:
        """Returns how long batches may be computed in this turn, so that they get their share."""
        if self.yielded_at is None:
            return 0.0
        elsewhere_s = now - self.yielded_at
        return min(_TURN_MAX_S, elsewhere_s * _QUEUE_SHARE / (1 - _QUEUE_SHARE))

    def is_left_to_grpc(self, now: float) -> bool:
        """Returns whether an overloaded process should accept calls before the next batch begins.

        gRPC accepts one call at a time, in several turns of the loop. With a batch in each turn,
        calls would wait there until their deadlines, where nobody can reject them.
        """
        is_accepting = now < self.accepted_at + _ACCEPT_S
        pause_s = self._computed_s * (1 / _COMPUTE_SHARE_MIN - 1)
        return is_accepting and now < self._computed_at + pause_s


class Scheduler:
    """Runs jobs by the rules above. Its methods run on one event loop.

    Attributes:
      queues: What waits.
      estimates: The time that jobs take in seconds, by kind and by group.
    """

    def __init__(
        self,
        compute: Compute,
        pool: ComputePool,
        metrics: Metrics,
        *,
        inline_max_s: float,
        alone_max_s: float,
        max_queued_candidates: int,
        retry_after_s: float,
        batch_max: int = 16,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Creates a scheduler without jobs.

        Args:
          compute: Returns the computation of a batch.
          pool: The compute threads, for long batches.
          metrics: Counts batches and dropped jobs.
          inline_max_s: Maximum expected time of a job that is computed on the event loop.
          alone_max_s: The same while requests come one after the other.
          max_queued_candidates: Maximum cost of the jobs that wait.
          retry_after_s: Minimum retry-after of a rejected request.
          batch_max: Maximum number of jobs in one batch.
          clock: Returns the current monotonic time in seconds.
        """
        self._compute = compute
        self._pool = pool
        self._metrics = metrics
        self._clock = clock
        self.queues = Queues(batch_max, inline_max_s, alone_max_s, pool.threads)
        self._admission = Admission(
            clock, max_queued_candidates=max_queued_candidates, retry_after_s=retry_after_s
        )
        self.estimates = self._admission.estimates
        self._share = LoopShare()
        self._sweep = Sweep(self._drop, clock)
        self._dispatching = False
        self._computed_in_turn = False
        self._together_at = clock()
        """The time at which two requests were last there at once."""

    @property
    def wait_s(self) -> float:
        """The time that a job which arrives now is expected to wait, as the jobs before it did."""
        return self._admission.wait_s(self.queues.expected_s)

    def overload(self, model: str, call: str, deadline: float) -> Overloaded | None:
        """Returns why a request should be rejected before it is decoded; None: it should be
        admitted.

        Args:
          model: The model's name; "": not known yet, so that the queue alone decides.
          call: The call.
          deadline: The deadline, on the scheduler's clock.
        """
        queues = self.queues
        return self._admission.overload((model, call), deadline, queues.expected_s, queues.cost)

    def call_accepted(self) -> None:
        """Notes that gRPC accepted a call, behind which others may wait to be accepted."""
        self._share.accepted_at = self._clock()

    async def run(self, job: Job) -> Any:
        """Returns the result of a job; the job's lease is released once it is computed or dropped.

        Raises:
          Overloaded: The job is rejected.
          ServiceError: The job failed.
        """
        try:
            now = self._clock()
            queues = self.queues
            estimate_s = self._admission.admit(job, queues.expected_s, queues.cost, now)
            is_alone = self._is_alone(now)
            queues.add(job, estimate_s, is_alone)
        except BaseException:
            job.lease.release()
            raise
        if is_alone:
            self._computed_in_turn = True
            asyncio.get_running_loop().call_soon(self._end_turn)
            self._dispatch(now)
        else:
            self._wake(now)
        # Whoever comes alone mostly has a result by now, which nothing has to look over.
        if job.future.done():
            return job.future.result()
        self._sweep.add(job)
        try:
            return await job.future
        except asyncio.CancelledError:
            self._drop(job, Cancelled(CLIENT_GONE))
            raise
        finally:
            self._sweep.remove(job)

    def _is_alone(self, now: float) -> bool:
        """Returns whether requests come one after the other, and none of them waits."""
        if self._computed_in_turn or self._sweep.has_jobs:
            self._together_at = now
        is_together = now - self._together_at < _ALONE_AFTER_S
        return not (is_together or self._dispatching or self._admission.is_overloaded(now))

    def _end_turn(self) -> None:
        """Notes that the loop turns to something else than the request that was computed last."""
        self._computed_in_turn = False

    def _wake(self, now: float) -> None:
        """Has the loop turn to the queues soon, if it is not about to."""
        if self._dispatching:
            return
        self._dispatching = True
        loop = asyncio.get_running_loop()
        if self._admission.is_overloaded(now):
            # Enough has arrived for a batch, and turns are long.
            loop.call_soon(self._dispatch, now)
        else:
            # A turn later: what arrives meanwhile joins the batch. Responses and new requests take
            # turns, so that a batch of eight clients held 7.2 instead of 3.8 retrievals.
            loop.call_soon(loop.call_soon, self._dispatch, now)

    def _drop(self, job: Job, problem: DeadlineExceeded | Cancelled) -> None:
        """Ends the wait for a job: at once if it is queued, else before its next expensive step."""
        job.context.cancelled = True
        if self.queues.remove(job):
            if isinstance(problem, DeadlineExceeded):
                # It was admitted, so it was expected to wait for less.
                self._admission.observe_wait(job, self._clock())
            self._settle_dropped(job, problem)
        elif not job.future.done():
            # The batch that computes it holds the lease to its end.
            job.future.set_exception(problem)

    def close(self) -> None:
        """Fails every job that waits, for its turn or for other processes; ends the compute
        threads.
        """
        for job in self.queues.take_all():
            _settle(job, NotReady(_SHUTTING_DOWN))
        self._pool.close()

    def _dispatch(self, woken_at: float) -> None:
        """Submits long batches to idle threads and computes short ones: one, so that the loop stays
        responsive, or more if the turns since the last one took longer than it.

        Args:
          woken_at: When a batch began to wait for this turn of the loop.
        """
        began = self._clock()
        if self._admission.is_overloaded(began) and self._share.is_left_to_grpc(began):
            asyncio.get_running_loop().call_soon(self._dispatch, woken_at)
            return
        self._dispatching = False
        self._admission.observe_turn(began - woken_at)

        if self.queues.wants_thread:
            self._submit_long_batches()
        now = self._compute_short_batches(began)

        if self._has_next_batch:
            self._share.yielded_at = now
            self._wake(now)
        else:
            self._share.yielded_at = None

    @property
    def _has_next_batch(self) -> bool:
        """Whether a batch could begin now."""
        has_free_thread = self.queues.wants_thread and self._pool.idle > 0
        return self.queues.inline.size > 0 or has_free_thread

    def _submit_long_batches(self) -> None:
        # Set at each turn: a thread that helped with a large batch becomes idle without a result
        # that would wake the loop.
        loop = asyncio.get_running_loop()
        self._pool.when_idle = functools.partial(self._wake_from_thread, loop)
        while self.queues.wants_thread and self._pool.idle > 0:
            # Batches that were suspended have waited the longest.
            if self.queues.resumed:
                self._step_in_thread(self.queues.resumed.popleft())
                continue
            jobs = self._drop_dead(self.queues.long.take(), self._clock())
            if jobs:
                self._step_in_thread(Batch(jobs, self._compute(jobs, self._pool), False))

    def _compute_short_batches(self, began: float) -> float:
        """Computes short batches on the loop, as long as their share lasts; returns the time."""
        now = began
        end = began + self._share.guaranteed_s(began)
        while self.queues.inline.size:
            jobs = self._drop_dead(self.queues.inline.take(), now)
            if jobs:
                self._step_on_loop(Batch(jobs, self._compute(jobs, None), True))
            now = self._clock()
            self._share.observe(now, now - began)
            if now >= end:
                break
        return now

    def _drop_dead(self, jobs: Sequence[Job], now: float) -> list[Job]:
        """Drops the jobs that nobody waits for any more, and returns the others."""
        waiting = list[Job]()
        for job in jobs:
            self._admission.observe_wait(job, now)
            if job.context.cancelled or job.future.done():
                self._settle_dropped(job, Cancelled(CLIENT_GONE))
            elif now >= job.context.deadline:
                self._settle_dropped(job, DeadlineExceeded(DEADLINE_PASSED))
            else:
                job.context.phases["queue"] = now - job.queued_at
                waiting.append(job)
        return waiting

    def _settle_dropped(self, job: Job, problem: DeadlineExceeded | Cancelled) -> None:
        reason = "expired" if isinstance(problem, DeadlineExceeded) else "cancelled"
        self._metrics.call_rejected(job.context.call, job.lease.version.model, reason)
        _settle(job, problem)

    def _step_on_loop(self, batch: Batch) -> None:
        self._continue_batch(batch, batch.step())

    def _step_in_thread(self, batch: Batch) -> None:
        self.queues.running_s += batch.expected_s
        self._pool.submit(
            batch.step,
            functools.partial(self._hand_over, asyncio.get_running_loop(), batch),
        )

    def _hand_over(
        self,
        loop: asyncio.AbstractEventLoop,
        batch: Batch,
        call: RemoteCall[Any] | None,
    ) -> None:
        """Returns a batch from a compute thread to the event loop."""
        try:
            loop.call_soon_threadsafe(self._continue_from_thread, batch, call)
        except RuntimeError:  # the loop is closed: nobody waits any more
            for job in batch.jobs:
                job.lease.release()

    def _continue_from_thread(self, batch: Batch, call: RemoteCall[Any] | None) -> None:
        # Rounding must not leave less than nothing.
        self.queues.running_s = max(0.0, self.queues.running_s - batch.expected_s)
        now = self._clock()
        self._share.observe(now, batch.seconds / self._pool.threads)
        # The thread begins the next batch now: to send the responses of this one, and to read the
        # next requests, takes a large part of a batch.
        if self.queues.wants_thread and not self._admission.is_overloaded(now):
            self._submit_long_batches()
        self._continue_batch(batch, call)
        if self._has_next_batch:
            self._wake(self._clock())

    def _wake_from_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wakes the event loop, from a compute thread, if a batch waits for one."""
        if self.queues.wants_thread:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._wake, self._clock())

    def _continue_batch(self, batch: Batch, call: RemoteCall[Any] | None) -> None:
        """Makes the call that a batch waits for, or finishes the batch."""
        if call is None:
            self._finish(batch)
            return
        task = asyncio.ensure_future(call.make())
        self.queues.suspended[task] = batch
        task.add_done_callback(self._receive_response)

    def _receive_response(self, call: asyncio.Future[Any]) -> None:
        """Continues the batch that waited for a call."""
        batch = self.queues.suspended.pop(call, None)
        if batch is None:  # the scheduler was closed
            return
        if call.cancelled():
            for job in batch.jobs:
                _settle(job, NotReady(_SHUTTING_DOWN))
            return
        batch.receive(call)
        if batch.on_loop:
            self._step_on_loop(batch)
        else:
            self.queues.resumed.append(batch)
            self._wake(self._clock())

    def _finish(self, batch: Batch) -> None:
        seconds = batch.seconds / len(batch.jobs)
        self._metrics.observe("batch_requests", len(batch.jobs), batch.jobs[0].context.call)
        self._admission.observe_batch(batch.jobs, batch.results, seconds)
        for job, result in zip(batch.jobs, batch.results, strict=True):
            _settle(job, result)


def _settle(job: Job, result: Any) -> None:
    """Releases the lease of a job and sets the result, or the ServiceError that takes its place."""
    job.lease.release()
    # The sweep fails a job at its deadline although its batch is still being computed.
    if job.future.done():
        return
    if isinstance(result, ServiceError):
        job.future.set_exception(result)
    else:
        job.future.set_result(result)
