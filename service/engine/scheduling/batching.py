"""Batches: requests that are computed as one, and the queue that they are taken from."""

from __future__ import annotations

import asyncio
import functools
import math
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from service.engine.computation import Computation, RemoteCall, Resume
from service.engine.context import RequestContext
from service.versions.lifecycle import Lease


@dataclass(eq=False, slots=True)
class Job:
    """A request between its admission and its answer.

    Attributes:
      kind: requests of one kind take about equally long.
      group: the model and the call, which are known before the request is decoded.
      cost: in candidates, a query or example counting as one.
      key: requests with an equal key can be computed as one batch; None: this one is computed
        alone.
      future: the answer.
      expected_s: how long its computation is expected to take.
      predicted_s: how long it would wait if nothing but the queue took time.
      sweeps: how often it was looked over.
      watcher: ends when the client has hung up; None: nothing watches the connection.
    """

    request: Any
    context: RequestContext
    lease: Lease
    kind: Hashable
    group: tuple[str, str]
    cost: int
    key: Hashable
    future: asyncio.Future[Any]
    expected_s: float = 0.0
    predicted_s: float = 0.0
    queued_at: float = 0.0
    sweeps: int = 0
    watcher: asyncio.Future[object] | None = None


class BatchQueue:
    """Jobs in order of arrival, those with equal keys together."""

    def __init__(
        self, batch_max: int, expected_max_s: float = math.inf, cost_max: float = math.inf
    ) -> None:
        """Creates an empty queue.

        Args:
          batch_max: Maximum number of jobs in one batch.
          expected_max_s: Maximum sum of the expected times of a batch of several jobs.
          cost_max: Maximum sum of the costs of a batch of several jobs, whose times may not be
            known yet.
        """
        self._batch_max = batch_max
        self._expected_max_s = expected_max_s
        self._cost_max = cost_max
        self._jobs: OrderedDict[Hashable, dict[Job, None]] = OrderedDict()
        self.size = 0
        self.cost = 0
        self.expected_s = 0.0

    def __iter__(self) -> Iterator[Job]:
        return chain.from_iterable(self._jobs.values())

    def add(self, job: Job) -> None:
        """Appends a job."""
        self._jobs.setdefault(job if job.key is None else job.key, {})[job] = None
        self._count(job, 1)

    def take(self) -> list[Job]:
        """Removes and returns the first batch; empty: nothing waits."""
        if not self._jobs:
            return []
        batch: list[Job] = []
        expected_s = 0.0
        cost = 0
        key = next(iter(self._jobs))
        alike = self._jobs[key]
        for job in islice(alike, self._batch_max):
            expected_s += job.expected_s
            cost += job.cost
            if batch and (expected_s > self._expected_max_s or cost > self._cost_max):
                break
            batch.append(job)
        for job in batch:
            del alike[job]
            self._count(job, -1)
        if not alike:
            del self._jobs[key]
        return batch

    def remove(self, job: Job) -> bool:
        """Removes a job if it still waits; returns whether it did."""
        key = job if job.key is None else job.key
        alike = self._jobs.get(key, {})
        if job not in alike:
            return False
        del alike[job]
        self._count(job, -1)
        if not alike:
            del self._jobs[key]
        return True

    def _count(self, job: Job, sign: int) -> None:
        self.size += sign
        self.cost += sign * job.cost
        self.expected_s = self.expected_s + sign * job.expected_s if self.size else 0.0


class Batch:
    """Jobs that are computed as one, in steps: after each, other processes are called.

    Attributes:
      jobs: All are alive when the first step begins.
      expected_s: How long all steps are expected to take.
      on_loop: Whether the event loop computes it; else compute threads do.
      seconds: How long the steps so far took.
      answers: Of each job, after the last step.
    """

    def __init__(
        self, jobs: Sequence[Job], computation: Computation[Sequence[Any]], on_loop: bool
    ) -> None:
        self.jobs = jobs
        self.expected_s = sum([job.expected_s for job in jobs])
        self.on_loop = on_loop
        self.seconds = 0.0
        self.answers: Sequence[Any] = ()
        self._computation = computation
        self._resume: Resume = functools.partial(computation.send, None)

    def step(self) -> RemoteCall[Any] | None:
        """Computes to the next call of other processes; None: the batch is complete."""
        try:
            return self._resume()
        except StopIteration as end:
            self.answers = end.value
            return None

    def receive(self, call: asyncio.Future[Any]) -> None:
        """Takes the result of a call, or its failure, for the next step."""
        problem = call.exception()
        if problem is None:
            self._resume = functools.partial(self._computation.send, call.result())
        else:
            self._resume = functools.partial(self._computation.throw, problem)
