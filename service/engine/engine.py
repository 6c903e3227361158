"""The desk: one method per call. Admission, deadline, lease, metrics; then it delegates to retrieval, ranking, lookup.

By callback or by coroutine at the top, plain functions below: each call is one job of the scheduler, on the event
loop or in a thread.
A permit and a lease are held until the job has really ended, also when the caller is long gone.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from bundle.errors import BundleError
from service import logs
from service.engine import details, embedding, lookup, ranking, recommendation, retrieval, warm_up
from service.engine.admission import Admission, Permit
from service.engine.descriptions import ModelDetails, ModelState
from service.engine.jobs import Job, Told, Work
from service.engine.occupancy import Occupancy
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
    Retrieval,
    Retrieved,
    Target,
)
from service.engine.scheduler import Scheduler
from service.engine.steps import Steps
from service.errors import NotReady, Overloaded, ServiceError
from service.generations.figures import GenerationFigures
from service.generations.generation import Generation
from service.generations.loader import LoadRefused
from service.generations.switch import Switch
from service.metrics import Metrics
from service.settings import ServiceSettings

log = logs.logger(__name__)

_TOLD_EVERY_S = 1.0
_HELPED_MAX = 8
"""Threads of a worker that has fewer of its own which compute one large call."""
_WORK: Mapping[str, Work[Any, Any]] = {
    "retrieve": retrieval.retrieve,
    "rank": ranking.rank,
    "recommend": recommendation.recommend,
    "embed": embedding.embed,
    "lookup": lookup.look_up,
}


class Engine:
    """Answers every call of both doors; raises only `ServiceError`. Its methods run on one event loop."""

    def __init__(
        self,
        switch: Switch,
        settings: ServiceSettings,
        metrics: Metrics,
        threads: int,
        occupancy: Occupancy | None = None,
    ) -> None:
        """Makes an engine that answers from `switch`, computing in so many threads, which are all cores unless told."""
        self._switch, self._settings, self._metrics = switch, settings, metrics
        paces = Paces(settings.inline_us_max / 1e6, settings.turn_us_max / 1e6)
        occupancy = occupancy or Occupancy(threads)
        piece_s = settings.piece_us / 1e6
        # Of a service with several workers each has few threads for its calls, and may use all cores for a large one.
        helpers = 0 if settings.threads or not piece_s else max(0, min(occupancy.cores, _HELPED_MAX) - threads)
        self._scheduler = Scheduler(
            threads,
            paces,
            settings.in_line_max,
            settings.retry_after_s,
            metrics,
            occupancy,
            helpers=helpers,
            piece_s=piece_s,
        )
        limits = (settings.in_flight_max, settings.in_flight_candidates_max, lambda: self._scheduler.retry_after_s)
        self._callers, self._admission = Admission(*limits), Admission(*limits)
        metrics.in_flight.set_function(lambda: self.in_flight)
        metrics.registry.register(GenerationFigures(switch))
        self._told = -math.inf
        self._details: WeakKeyDictionary[Generation, ModelDetails] = WeakKeyDictionary()

    def refusal(self, name: str, timeout_s: float | None) -> Overloaded | None:
        """Returns why a call is refused before its body is there, and counts it; None: it is not, as far as is known.

        Reading and decoding are dear too: what is refused here has cost nothing yet.

        Args:
          name: one of `metrics.CALLS`.
          timeout_s: that its caller waits from now on; None: as long as the service allows.
        """
        refused = self._callers.full()
        if refused is None:
            limit_s = self._settings.timeout_s
            refused = self._scheduler.refusal(name, limit_s if timeout_s is None else min(timeout_s, limit_s))
        if refused is not None:
            self._shed(name, refused.reason)
        return refused

    def enter(self, name: str = "other", deadline: float | None = None) -> Permit:
        """Lets a call in, to be held by its door from before its body is decoded until its answer is written.

        Args:
          name: one of `metrics.CALLS`.
          deadline: on the clock of `time.monotonic()`; None: the service's own limit.

        Raises:
          ServiceError: Overloaded, or NotReady while the service drains.
        """
        if self._switch.suspended:
            self._shed(name, "draining")
            raise NotReady(self._switch.suspended)
        if self._callers.draining:
            self._shed(name, "draining")
        elif (refused := self.refusal(name, None if deadline is None else deadline - time.monotonic())) is not None:
            raise refused.with_traceback(None)  # it may have been raised before
        return self._callers.admit()

    async def retrieve(self, request: Retrieval, call: Call) -> Retrieved:
        """Finds the nearest candidates of n queries."""
        found: Retrieved = await self._answer("retrieve", request, call)
        return found

    async def rank(self, request: Ranking, call: Call) -> Ranked:
        """Scores candidates for n contexts."""
        found: Ranked = await self._answer("rank", request, call)
        return found

    async def recommend(self, request: Recommendation, call: Call) -> Recommended:
        """Retrieves, then ranks what was retrieved, with one generation."""
        found: Recommended = await self._answer("recommend", request, call)
        return found

    async def embed(self, request: Embedding, call: Call) -> Embedded:
        """Runs one tower over n examples."""
        found: Embedded = await self._answer("embed", request, call)
        return found

    async def lookup(self, request: Lookup, call: Call) -> LookedUp:
        """Reads table rows by id."""
        found: LookedUp = await self._answer("lookup", request, call)
        return found

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
            return details.placed(found, self._switch.models().get(generation.model, ()))

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
        none_loads = "no model has a version that could be loaded; the list of models tells why"
        return none_loads if self._switch.models() else "no bundle has come into the root yet"

    @property
    def in_flight(self) -> int:
        """Calls admitted and not yet ended."""
        return self._admission.in_flight

    def warm_up(self, generation: Generation, pause: Callable[[], object]) -> None:
        """Answers synthetic requests with a generation before it is served, in the calling thread.

        Args:
          pause: called after each piece of work.
        Raises:
          LoadRefused: a request cannot be answered: the bundle's parts do not fit each other.
        """
        try:
            warm_up.run(generation, self._settings, pause)
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
        self._scheduler.close()

    def start(self, name: str, request: Any, call: Call, told: Told[Any]) -> Job[Any, Any]:
        """Begins a call.

        Args:
          name: retrieve, rank, recommend, embed or lookup.
          request: what is asked, of the class that belongs to the name.
          call: who asks.
          told: takes the answer, or the failure, once: in a later turn of the loop, unless the call is given up first.

        Returns:
          The call, for `give_up`.

        Raises:
          ServiceError: it is not let in.
        """
        began = time.monotonic()
        deadline = began + self._settings.timeout_s
        if call.deadline is not None:
            deadline = min(deadline, call.deadline)
        steps = Steps(name, deadline, self._metrics, (call.phases,))
        steps.check()
        job = self._admitted(name, request, call, steps, told)
        try:
            steps.record("admit", time.monotonic() - began)
            steps.submitted()
            self._scheduler.submit(job)
        except BaseException as problem:
            job.release()
            if isinstance(problem, Overloaded):
                self._shed(name, problem.reason)
            raise
        return job

    async def _answer(self, name: str, request: Any, call: Call) -> Any:
        waiting = _Waiting()
        waiting.job = self.start(name, request, call, waiting.told)
        return await waiting

    def _shed(self, name: str, reason: str) -> None:
        """Counts a refused call; of a flood the log tells once a second."""
        self._metrics.shed(name, reason)
        if reason != "draining" and time.monotonic() - self._told >= _TOLD_EVERY_S:
            self._told = time.monotonic()
            wait_s = round(self._scheduler.wait_s, 3)
            log.warning("overloaded", extra=logs.fields(reason=reason, in_flight=self.in_flight, wait_s=wait_s))

    def _admitted(self, name: str, request: Any, call: Call, steps: Steps, told: Told[Any]) -> Job[Any, Any]:
        candidates = request.cost
        try:
            permit = self._admission.admit(candidates)
        except Overloaded as refused:
            self._shed(name, refused.reason)
            raise
        try:
            lease = self._switch.lease(request.target.model, request.target.version, request.target.label)
        except BaseException:
            permit.release()
            raise
        work, settings, loop = _WORK[name], self._settings, asyncio.get_running_loop()
        leave = self._scheduler.drop
        return Job(work, request, settings, steps, call, request.kind, candidates, permit, lease, told, loop, leave)


class _Waiting(asyncio.Future[Any]):
    """A coroutine's wait for a call; the call is given up with it at once, not in the loop's next turn."""

    job: Job[Any, Any]

    def told(self, outcome: Any) -> None:
        if isinstance(outcome, ServiceError):
            self.set_exception(outcome)
        else:
            self.set_result(outcome)

    def cancel(self, msg: Any | None = None) -> bool:
        self.job.give_up()
        return super().cancel(msg)
