"""The desk: one method per call. Admission, deadline, lease, metrics; then it delegates to retrieval, ranking, lookup.

Async at the top, plain functions below: each call is one job in a named, bounded pool, or on the event loop if it is
measured to be shorter than the way there and back. A permit and a lease are held until the job has really ended, also
when the caller is long gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from concurrent.futures import Future, ThreadPoolExecutor
from weakref import WeakKeyDictionary

from bundle.errors import BundleError
from service.engine import details, embedding, lookup, ranking, recommendation, retrieval, warm_up
from service.engine.admission import Admission, Permit
from service.engine.descriptions import ModelDetails, ModelState
from service.engine.jobs import Answer, Job, Work
from service.engine.pace import Paces
from service.engine.requests import (
    Call,
    Embedded,
    Embedding,
    LookedUp,
    Lookup,
    Ranked,
    Ranking,
    Recommendation,
    Recommended,
    Request,
    Retrieval,
    Retrieved,
    Target,
)
from service.engine.steps import Steps
from service.engine.turns import Turns
from service.errors import DeadlineExceeded, ServiceError
from service.generations.generation import Generation
from service.generations.loader import LoadRefused
from service.generations.switch import Switch
from service.metrics import Metrics
from service.settings import ServiceSettings


class Engine:
    """Answers every call of both doors; raises only `ServiceError`. Its methods run on one event loop."""

    def __init__(self, switch: Switch, settings: ServiceSettings, metrics: Metrics, workers: int) -> None:
        """Makes an engine that answers from `switch`, computing in `workers` threads."""
        self._switch, self._settings, self._metrics, self._workers = switch, settings, metrics, workers
        self._callers = Admission(settings.in_flight_max, settings.retry_after_s)
        self._admission = Admission(settings.in_flight_max, settings.retry_after_s)
        metrics.in_flight.set_function(lambda: self.in_flight)
        self._paces = Paces(settings.inline_us_max / 1e6)
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="rowcast-compute")
        self._turns = Turns(self._paces, self._pool)
        self._details: WeakKeyDictionary[Generation, ModelDetails] = WeakKeyDictionary()

    def enter(self) -> Permit:
        """Lets a call in, to be held by its door from before its body is decoded until its answer is written.

        Decoding is dear too: what is refused here has cost nothing yet.

        Raises:
          ServiceError: Overloaded, or NotReady while the service drains.
        """
        return self._callers.admit()

    async def retrieve(self, request: Retrieval, call: Call) -> Retrieved:
        """Finds the nearest candidates of n queries."""
        return await self._answer("retrieve", request, call, retrieval.retrieve)

    async def rank(self, request: Ranking, call: Call) -> Ranked:
        """Scores candidates for n contexts."""
        return await self._answer("rank", request, call, ranking.rank)

    async def recommend(self, request: Recommendation, call: Call) -> Recommended:
        """Retrieves, then ranks what was retrieved, with one generation."""
        return await self._answer("recommend", request, call, recommendation.recommend)

    async def embed(self, request: Embedding, call: Call) -> Embedded:
        """Runs one tower over n examples."""
        return await self._answer("embed", request, call, embedding.embed)

    async def lookup(self, request: Lookup, call: Call) -> LookedUp:
        """Reads table rows by id."""
        return await self._answer("lookup", request, call, lookup.look_up)

    def models(self) -> tuple[ModelState, ...]:
        """Tells which models and versions there are, and why the refused ones are."""
        return details.states(self._switch)

    def model(self, target: Target) -> ModelDetails:
        """Tells all that a caller needs to write a request for one version.

        Raises:
          ServiceError: as the calls: NotFound, NotReady, InvalidArgument, DataLoss.
        """
        with self._switch.lease(target.model, target.version, target.label) as generation:
            found = self._details.get(generation)
            if found is None:  # of thousands of features, that takes a while
                found = self._details[generation] = details.describe(generation)
            return found

    @property
    def ready(self) -> bool:
        """Whether callers should be sent here: the root was looked through, every required model and at least one is
        available, and the service is not draining."""
        return not self.problem

    @property
    def problem(self) -> str:
        """Why callers should not be sent here; empty: they should."""
        if self._callers.draining:
            return "the service is going down"
        if self._switch.suspended:
            return self._switch.suspended
        if not self._switch.settled:
            return "the models are still being loaded"
        available = self._switch.available()
        if missing := sorted(set(self._settings.require) - available):
            return f"required models {missing} are not available; the list of models tells why"
        if available:
            return ""
        if self._switch.models():
            return "no model has a version that could be loaded; the list of models tells why"
        return "no bundle has come into the root yet"

    @property
    def in_flight(self) -> int:
        """Calls admitted and not yet ended."""
        return self._admission.in_flight

    def warm_up(self, generation: Generation) -> None:
        """Answers synthetic requests with a generation in every compute thread, before it is served. Blocks.

        Raises:
          LoadRefused: a request cannot be answered: the bundle's parts do not fit each other.
        """
        jobs = [self._pool.submit(warm_up.run, generation, self._settings) for _ in range(self._workers)]
        for job in jobs:
            try:
                job.result()
            except (ServiceError, BundleError) as problem:
                raise LoadRefused(f"a synthetic request cannot be answered: {problem}") from problem

    def drain(self) -> None:
        """Refuses every new call from now on; those that were let in go on."""
        self._callers.drain()

    async def drained(self, timeout_s: float) -> bool:
        """Waits until every call is answered and ended, at most `timeout_s`; tells whether that came true."""
        return await asyncio.to_thread(self._wait_idle, time.monotonic() + timeout_s)

    def _wait_idle(self, end: float) -> bool:
        return all(each.wait_idle(max(0, end - time.monotonic())) for each in (self._callers, self._admission))

    def close(self) -> None:
        """Ends the compute threads; jobs that were not begun are dropped."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _answer(self, name: str, request: Request, call: Call, work: Work[Request, Answer]) -> Answer:
        began = time.monotonic()
        deadline = began + self._settings.timeout_s
        if call.deadline is not None:
            deadline = min(deadline, call.deadline)
        steps = Steps(name, deadline, self._metrics, (call.phases,))
        steps.check()
        permit = self._admission.admit()
        try:
            lease = self._switch.lease(request.target.model, request.target.version, request.target.label)
        except BaseException:
            permit.release()
            raise
        steps.record("admit", time.monotonic() - began)
        steps.submitted()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        job = Job(work, request, self._settings, steps, call, request.kind, permit, lease, answer)
        late = None
        if self._paces.short(lease.generation, job.kind):
            self._turns.add(job)
        else:
            self._pool.submit(job.compute).add_done_callback(functools.partial(self._ended, job))
            late = loop.call_later(deadline - time.monotonic(), _give_up, answer)
        try:
            return await answer
        except (DeadlineExceeded, asyncio.CancelledError):
            steps.abandon()
            raise
        finally:
            if late is not None:
                late.cancel()

    def _ended(self, job: Job[Request, Answer], computed: Future[Answer]) -> None:
        job.release()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            job.answer.get_loop().call_soon_threadsafe(self._settle, job, computed)

    def _settle(self, job: Job[Request, Answer], computed: Future[Answer]) -> None:
        # Cheaper than asyncio.wrap_future with asyncio.timeout, which chain futures and tasks for what is one wake-up.
        if job.took_s is not None:
            self._paces.computed(job.lease.generation, job.kind, job.took_s)
        if computed.cancelled():
            job.answer.cancel()
        elif problem := computed.exception():
            job.fail(problem)
        else:
            job.succeed(computed.result())


def _give_up(answer: asyncio.Future[Answer]) -> None:
    if not answer.done():
        answer.set_exception(DeadlineExceeded("the time for this call is over"))
