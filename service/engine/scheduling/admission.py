"""Which requests are admitted: how long they are expected to wait and to take, by what earlier
requests took, and whether that leaves time before their deadlines.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from service.engine.scheduling.queues import Job
from service.errors import Overloaded, ServiceError

_SAFETY_FACTOR = 2
"""Multiple of the expected time that must remain before a deadline. The expected time is an
average: with less, a long queue would be computed just after its deadlines. At twice the load that
a service can compute, factor 2 raised the results in time from a third or half to 0.88 of the
capacity.
"""
_DELAY_FACTOR_MAX = 16.0
"""Maximum factor by which waits are expected to be longer than the sum of the estimates. It bounds
how much one very slow wait makes the service reject.
"""
_DELAY_WEIGHT = 0.1
"""Weight of the newest wait, and of the newest turn, in their averages. A larger weight follows the
load faster; a smaller one is not misled by a single wait.
"""
_ESTIMATE_WEIGHT = 0.1
"""Weight of the newest measurement in the estimate of a kind; trades off the same as above."""
_PREDICTION_MIN_S = 0.001
"""Minimum predicted wait in seconds, as which shorter ones count: a turn of the event loop is not a
slow queue.
"""
_OVERLOAD_S = 0.1
"""Time after a rejection in which the process counts as overloaded, in seconds (ADR 46)."""
_KINDS_MAX = 4096
"""Maximum number of kinds with an estimate: bounds their memory, since clients choose sizes and
options, and with them the kinds.
"""
_QUEUE_FULL = "the queue has no room for the request (max_queued_candidates)"
_TOO_LATE = "the response would miss the deadline of the request"


class Estimates:
    """Exponentially weighted averages of the times or costs of jobs, by kind."""

    def __init__(self) -> None:
        self._averages: dict[Hashable, float] = {}

    def expected(self, kind: Hashable) -> float | None:
        """Returns the average; None: no job of the kind was computed yet."""
        return self._averages.get(kind)

    def observe(self, kind: Hashable, value: float, times: int = 1) -> None:
        """Adds a measurement to the average, as often as it was made."""
        # Removed and inserted again, so that the dict is in order of the last observation.
        average = self._averages.pop(kind, None)
        if average is None:
            if len(self._averages) >= _KINDS_MAX:
                # The kind that was not observed for the longest time makes room.
                del self._averages[next(iter(self._averages))]
            self._averages[kind] = value
            return
        weight = 1 - (1 - _ESTIMATE_WEIGHT) ** times
        self._averages[kind] = average + weight * (value - average)


class Admission:
    """Decides which requests are admitted, and learns from those that were.

    Attributes:
      estimates: The time that a job takes in seconds, by kind and by group.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        max_queued_candidates: int,
        retry_after_s: float,
    ) -> None:
        """Creates an admission that has learned nothing yet.

        Args:
          clock: Returns the current monotonic time in seconds.
          max_queued_candidates: Maximum cost of the jobs that wait.
          retry_after_s: Minimum retry-after of a rejected request.
        """
        self._clock = clock
        self._max_cost = max_queued_candidates
        self._retry_after_s = retry_after_s
        self.estimates = Estimates()
        self._costs = Estimates()
        self._delay_factor = 1.0
        self._turn_s = 0.0
        self._overloaded_at = -math.inf

    def wait_s(self, queued_s: float) -> float:
        """Returns how long a job waits behind others that are expected to take `queued_s`: until
        the loop turns to them, and then for them.

        Rejections, decoding and other processes use a part of the core that the estimates of
        computations do not contain, so the delay factor corrects them.
        """
        if not queued_s:
            return 0.0
        return self._turn_s + max(1.0, self._delay_factor) * queued_s

    def is_overloaded(self, now: float) -> bool:
        """Returns whether a request was rejected, or came too late, a short while ago."""
        return now < self._overloaded_at + _OVERLOAD_S

    def overload(
        self, group: tuple[str, str], deadline: float, queued_s: float, queued_cost: int
    ) -> Overloaded | None:
        """Returns why a request should be rejected before it is decoded, by what requests of its
        model and call usually cost and take; None: it should be admitted.

        Args:
          group: The model and the call; a model "" is not known yet, so that the queue alone
            decides.
          deadline: The deadline, on the scheduler's clock.
          queued_s: The time that the jobs before it are expected to take.
          queued_cost: The cost of the jobs that wait.
        """
        wait_s = self.wait_s(queued_s)
        expected_s = self.estimates.expected(group) or 0.0
        now = self._clock()
        if not wait_s and not queued_cost:
            self._note_late_arrival(now, expected_s, deadline)
            return None
        # The cost is an average of other requests: it alone must not keep a request out of a queue
        # that is half empty.
        cost = min(int(self._costs.expected(group) or 0), self._max_cost // 2)
        return self._rejection(cost, queued_cost, wait_s, expected_s, deadline, now)

    def admit(self, job: Job, queued_s: float, queued_cost: int, now: float) -> float | None:
        """Notes the expected times in a decoded job; returns the estimate of its kind, if there is
        one.

        Args:
          job: The job.
          queued_s: The time that the jobs before it are expected to take.
          queued_cost: The cost of the jobs that wait.
          now: The time, on the scheduler's clock.

        Raises:
          Overloaded: The queue is full, or the job's deadline would pass.
        """
        estimate_s = self.estimates.expected(job.kind)
        expected_s = estimate_s or 0.0
        deadline = job.context.deadline
        if queued_s or queued_cost:
            wait_s = self.wait_s(queued_s)
            problem = self._rejection(job.cost, queued_cost, wait_s, expected_s, deadline, now)
            if problem is not None:
                raise problem
        if not queued_s:
            self._note_late_arrival(now, expected_s, deadline)
        job.expected_s = expected_s
        job.predicted_s = queued_s
        job.queued_at = now
        return estimate_s

    def observe_wait(self, job: Job, now: float) -> None:
        """Corrects the delay factor by how long a job really waited."""
        predicted_s = max(_PREDICTION_MIN_S, job.predicted_s)
        waited_s = max(0.0, now - job.queued_at - self._turn_s)
        factor = min(_DELAY_FACTOR_MAX, waited_s / predicted_s)
        self._delay_factor += _DELAY_WEIGHT * (factor - self._delay_factor)

    def observe_turn(self, seconds: float) -> None:
        """Learns how long the loop took to turn to the queue."""
        self._turn_s += _DELAY_WEIGHT * (seconds - self._turn_s)

    def observe_batch(self, jobs: Sequence[Job], results: Sequence[Any], seconds: float) -> None:
        """Learns the time and the cost of the jobs of a batch.

        Args:
          jobs: The jobs.
          results: The result or the ServiceError of each job.
          seconds: The time that each job took: its share of the batch.
        """
        # A batch moves the estimate of a kind once, as far as its jobs would one by one.
        observation_counts = defaultdict[Hashable, int](int)
        for job, result in zip(jobs, results, strict=True):
            # A request that fails slowly must not stay a short one; one that is rejected at once
            # says nothing about those that are computed.
            failed = isinstance(result, ServiceError)
            for kind in (job.kind, job.group):
                if not failed or self._is_slower(kind, seconds):
                    observation_counts[kind] += 1
            if not failed:
                self._costs.observe(job.group, job.cost)
        for kind, count in observation_counts.items():
            self.estimates.observe(kind, seconds, count)

    def _rejection(
        self,
        cost: int,
        queued_cost: int,
        wait_s: float,
        expected_s: float,
        deadline: float,
        now: float,
    ) -> Overloaded | None:
        # An empty queue admits any cost: else a request above the limit would never be served.
        if queued_cost and queued_cost + cost > self._max_cost:
            return self._reject(_QUEUE_FULL, wait_s, "queue")
        # The time of a turn is measured; only computations may take longer than expected.
        expected_end = now + _SAFETY_FACTOR * (wait_s + expected_s) - self._turn_s
        if wait_s and expected_end > deadline:
            return self._reject(_TOO_LATE, wait_s, "deadline")
        return None

    def _reject(self, message: str, wait_s: float, reason: str) -> Overloaded:
        self._overloaded_at = self._clock()
        wait_in_centiseconds = math.ceil(wait_s * 100)
        return Overloaded(message, max(self._retry_after_s, wait_in_centiseconds / 100), reason)

    def _note_late_arrival(self, now: float, expected_s: float, deadline: float) -> None:
        """Notes an overload if a request that reaches an idle process is too late already: it
        waited where nothing could reject it, such as in gRPC's core (ADR 46).
        """
        if now + _SAFETY_FACTOR * expected_s > deadline:
            self._overloaded_at = now

    def _is_slower(self, kind: Hashable, seconds: float) -> bool:
        """Returns whether requests of a kind are expected to take less. Nothing is expected of a
        kind that never succeeded: names in it may be a client's.
        """
        expected_s = self.estimates.expected(kind)
        return expected_s is not None and seconds > expected_s
