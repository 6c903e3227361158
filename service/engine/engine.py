"""Executes requests of all transports: admission, a pinned model version, the scheduler."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from operator import is_
from typing import Any
from weakref import WeakKeyDictionary

from bundle.errors import (
    BundleError,
    DigestMismatch,
    FeatureError,
    RowUnavailable,
    UnknownCandidate,
)
from bundle.features.sources import Fetched
from service.config import ServiceSettings
from service.contract import merging
from service.contract.messages import (
    EmbeddingRequest,
    LookupRequest,
    Offsets,
    RankingRequest,
    RecommendationRequest,
    RetrievalRequest,
    Target,
)
from service.engine import examples, lookup, towers, warmup
from service.engine.computation import Computation
from service.engine.context import RequestContext
from service.engine.execution import Execution, NotTogether
from service.engine.faults import error_of, numbers_at_fault
from service.engine.live_recall import LiveRecall
from service.engine.ranking import rank
from service.engine.retrieval import pipeline
from service.engine.scheduling.compute_pool import ComputePool
from service.engine.scheduling.queues import Job
from service.engine.scheduling.scheduler import Scheduler
from service.engine.score_drift import ScoreDrift
from service.errors import (
    INTERNAL_MESSAGE,
    SHARD_FAILURES,
    Internal,
    NotReady,
    Overloaded,
    ServiceError,
    Unimplemented,
    without_host,
)
from service.observability import logging
from service.observability.metrics import Metrics
from service.versions.lifecycle import Lease, VersionManager, VersionState
from service.versions.rejections import LoadRejected, ShardsMissing
from service.versions.throttle import LoadThrottle
from service.versions.version import ModelVersion

log = logging.logger(__name__)

COMPUTE: Mapping[type, Callable[..., Computation[Any]]] = {
    RetrievalRequest: pipeline.select,
    RankingRequest: rank.rank,
    RecommendationRequest: pipeline.select,
    EmbeddingRequest: towers.embed,
    LookupRequest: lookup.look_up,
}
_INLINE_S = 0.0005
"""Maximum expected time of a request on the event loop where compute threads run beside it, in
seconds. Handing it over costs about as much; a longer one would delay all other connections.
"""
_INLINE_ALONE_S = 0.002
"""The same while requests come one after the other, so that no other one waits: a hand-over delays
the response, and the loop turns to other connections as often as between batches.
"""
_INLINE_ONE_THREAD_S = 0.01
"""The same where there is one compute thread: handing a request over gains little there."""
_LOG_INTERVAL_S = 1.0
"""Minimum time between two log lines about overload."""
_TOO_MANY = "too many requests are in progress (max_concurrent_requests)"
_POLL_S = 0.01
"""Pause between two looks at the requests in progress while draining, in seconds."""


class Engine:
    """Executes the five calls; raises only `ServiceError`. Its methods run on one event loop."""

    def __init__(
        self,
        versions: VersionManager,
        settings: ServiceSettings,
        metrics: Metrics,
        threads: int,
        compute: Mapping[type, Callable[..., Computation[Any]]] = COMPUTE,
    ) -> None:
        """Creates an engine over the loaded versions.

        Args:
          threads: The number of compute threads.
          compute: By type of request, the function that returns its computation. Requests of other
            types are rejected.
        """
        self._versions = versions
        self._settings = settings
        self._metrics = metrics
        self._compute_functions = compute
        # A setting of the operator wins over the limit for the number of threads.
        inline_max_s = _INLINE_ONE_THREAD_S
        alone_max_s = _INLINE_ONE_THREAD_S
        if threads > 1:
            inline_max_s = _INLINE_S
            alone_max_s = _INLINE_ALONE_S
        if settings.inline_max_us is not None:
            inline_max_s = settings.inline_max_us / 1e6
            alone_max_s = inline_max_s
        self._scheduler = Scheduler(
            self._compute,
            ComputePool(threads),
            metrics,
            inline_max_s=inline_max_s,
            alone_max_s=alone_max_s,
            max_queued_candidates=settings.max_queued_candidates,
            retry_after_s=settings.retry_after_s,
        )
        self._score_drift = ScoreDrift(versions, metrics)
        self._live_recall: LiveRecall | None = None
        if settings.live_recall_share and settings.shard is None:
            self._live_recall = LiveRecall(
                versions,
                metrics,
                settings.live_recall_share,
                settings.live_recall_cpu,
                lambda: self.inflight,
            )
        # No request within the limits costs more; others are rejected once they are checked.
        self._cost_max = settings.max_candidates + settings.max_queries + settings.max_values // 256
        self._draining = False
        self.shutting_down = False
        """Health checks fail, and new requests are still accepted until `drain`."""
        self._logged_at = -math.inf
        self._examples: WeakKeyDictionary[ModelVersion, dict[str, Any]] = WeakKeyDictionary()
        self.inflight = 0
        """Requests in progress."""
        self.departures = 0
        """Requests that are no longer in progress. Until the next one, a request like one that was
        rejected is rejected too.
        """

    @property
    def idle(self) -> bool:
        """Whether no request waits and any request may be admitted, without a closer look."""
        return (
            self.inflight < self._settings.max_concurrent_requests
            and not self._scheduler.queues.expected_s
            and not self.shutting_down
        )

    def check_admission(self, call: str, deadline: float, model: str = "") -> None:
        """Rejects a request before its body is read: reading and decoding are expensive too.

        Args:
          call: The call.
          deadline: The deadline, on the clock of `time.monotonic()`.
          model: The model's name; "": not known yet.

        Raises:
          Overloaded: Too many requests are in progress or queued, or the deadline would pass.
          NotReady: The service is draining.
        """
        problem = self.rejection(call, deadline, model)
        if problem is not None:
            raise problem

    def rejection(
        self, call: str, deadline: float, model: str = ""
    ) -> Overloaded | NotReady | None:
        """Returns and counts what `check_admission` raises; None: the request is admitted."""
        problem: Overloaded | NotReady | None
        if self._draining or self._versions.suspended:
            problem = NotReady(self._versions.suspended or "the service is shutting down")
        elif self.inflight >= self._settings.max_concurrent_requests:
            retry_after_s = max(self._settings.retry_after_s, self._scheduler.wait_s)
            problem = Overloaded(_TOO_MANY, retry_after_s, "requests")
        else:
            problem = self._scheduler.overload(model, call, deadline)
        if problem is not None:
            self._count_rejection(call, model, problem)
        return problem

    def call_accepted(self) -> None:
        """Notes that gRPC accepted a call, behind which others may wait to be accepted."""
        self._scheduler.call_accepted()

    def admit(self, call: str, deadline: float, model: str = "") -> None:
        """Counts a request as in progress, from before it is decoded until `leave`; raises as
        above.
        """
        # Most requests reach an idle process, which needs no closer look.
        if not self.idle:
            self.check_admission(call, deadline, model)
        self.inflight += 1

    def leave(self) -> None:
        """Counts a request that was admitted as finished."""
        self.inflight -= 1
        self.departures += 1

    async def execute(self, request: Any, context: RequestContext) -> Any:
        """Returns the result of a request of one of the five calls.

        Raises:
          ServiceError: See `service/errors.py`.
        """
        context.check()
        # A shard knows no calls of clients, whose requests need rows that other shards have.
        if type(request) not in self._compute_functions:
            raise Unimplemented(
                f"this process is shard {self._settings.shard} and serves routers; "
                "send this call to a router"
            )
        target: Target = request.target
        lease = self._versions.acquire(target.model, target.version, target.label)
        version = lease.version
        context.model = version.model
        context.version = version.version
        if version.manifest.unread_inputs:
            request = request.without(version.manifest.unread_inputs)

        def find_key() -> Hashable:
            key = merging.key_of(request, lookup.ExampleCounts(version))
            if key is None:
                return None
            return version, key

        job = Job(
            request=request,
            context=context,
            lease=lease,
            kind=(version.model, request.kind),
            group=(version.model, context.call),
            cost=min(request.cost(version.sizes), self._cost_max),
            find_key=find_key,
            future=asyncio.get_running_loop().create_future(),
        )
        try:
            return await self._scheduler.run(job)
        except Overloaded as problem:
            self._count_rejection(context.call, version.model, problem)
            raise

    def lease(self, target: Target) -> Lease:
        """Leases the version that serves a request, to read what its client sent. Any thread may
        call it.

        Raises:
          ServiceError: As `VersionManager.acquire`.
        """
        return self._versions.acquire(target.model, target.version, target.label)

    def models(self) -> dict[str, tuple[VersionState, ...]]:
        """Returns the states of every model's versions, newest first, as clients may see them."""
        return {
            name: tuple(replace(state, problem=without_host(state.problem)) for state in states)
            for name, states in self._versions.models().items()
        }

    def bundles(self) -> list[tuple[str, int, int]]:
        """Returns model, version and fingerprint of every loaded version."""
        return [
            (version.model, version.version, version.fingerprint)
            for version in self._versions.loaded()
        ]

    def lease_for_client(self, target: Target) -> Lease:
        """Leases a version to describe it to a client. Any thread may call it.

        Raises:
          ServiceError: An error of the calls: NotFound, NotReady, InvalidArgument, DataLoss or
            Unimplemented.
        """
        if self._settings.shard is not None:
            raise Unimplemented(
                f"this process is shard {self._settings.shard} and serves routers; "
                "send this call to a router"
            )
        return self.lease(target)

    def examples(self, target: Target) -> dict[str, dict[str, Any]]:
        """Returns a JSON body of each call that a version serves, by the name of the call.

        Raises:
          ServiceError: See `lease_for_client`.
        """
        with self.lease_for_client(target) as version:
            bodies = self._examples.get(version)
            if bodies is None:
                bodies = self._examples[version] = examples.example_bodies(version)
            return bodies

    @property
    def problem(self) -> str:
        """Why requests should not be sent here; empty: they should."""
        if self.shutting_down:
            return "the service is shutting down"
        if self._versions.suspended:
            return self._versions.suspended
        if not self._versions.settled:
            return "the models are still being loaded"
        available = self._versions.available()
        if missing := self._versions.missing(self._settings.require):
            return missing
        if available:
            return ""
        failed = "no model has a version that could be loaded; the list of models says why"
        return failed if self._versions.models() else "no bundle has been found under the root yet"

    def warm_up(self, version: ModelVersion, throttle: LoadThrottle) -> None:
        """Computes synthetic requests with a version before it is served, in the calling thread.

        Raises:
          LoadRejected: A request fails: the parts of the bundle do not fit each other.
        """
        try:
            warmup.run(version, self._settings, throttle)
        except (ServiceError, BundleError) as problem:
            message = f"a synthetic request failed: {problem}"
            if version.shards is not None and isinstance(problem, SHARD_FAILURES):
                # It may have been a moment's failure, and is tried again.
                raise ShardsMissing(message) from problem
            raise LoadRejected(message) from problem

    def report_load(self) -> None:
        """Sets the metrics of the requests in progress and queued, of live recall and scores."""
        self._score_drift.report()
        if self._live_recall is not None:
            self._live_recall.report()
        self._metrics.set("inflight_requests", self.inflight)
        requests = Counter[str]()
        candidates = Counter[str]()
        for job in self._scheduler.queues:
            requests[job.lease.version.model] += 1
            candidates[job.lease.version.model] += job.cost
        self._metrics.queued(requests, candidates)

    def drain(self) -> None:
        """Rejects every new request from now on; those in progress continue."""
        self.departures += 1
        self._draining = self.shutting_down = True

    async def wait_until_drained(self, timeout_s: float) -> bool:
        """Waits until no request is in progress, at most `timeout_s`; returns whether none is."""
        end = time.monotonic() + timeout_s
        while self.inflight and time.monotonic() < end:
            await asyncio.sleep(_POLL_S)
        return self.inflight == 0

    def close(self) -> None:
        """Ends the compute threads; requests that wait fail."""
        if self._live_recall is not None:
            self._live_recall.close()
        self._scheduler.close()

    def _count_rejection(self, call: str, model: str, problem: Overloaded | NotReady) -> None:
        """Counts a rejected request; a flood is logged once per second."""
        reason = "draining"
        if isinstance(problem, Overloaded):
            reason = problem.reason
        self._metrics.call_rejected(call, model, reason)
        if reason != "draining" and time.monotonic() - self._logged_at >= _LOG_INTERVAL_S:
            self._logged_at = time.monotonic()
            wait_s = round(self._scheduler.wait_s, 3)
            log.warning(
                "overloaded",
                extra=logging.fields(reason=reason, inflight=self.inflight, wait_s=wait_s),
            )

    async def _compute(self, batch: Sequence[Job], pool: ComputePool | None) -> Sequence[Any]:
        """Computes a batch as one; if a job may be at fault each alone, so that only that one
        fails.
        """
        fetched = None
        if len(batch) > 1:
            try:
                # Jobs with equal keys have the same version, which the key contains.
                requests = [job.request for job in batch]
                merged = merging.merge(requests, lookup.ExampleCounts(batch[0].lease.version))
                result = await self._execute(batch, merged.request, pool, ends=merged.ends)
                return merging.split(result, merged.ends)
            except NotTogether as problem:
                fetched = problem.fetched
            except Exception as problem:  # noqa: BLE001 - the jobs that fail alone report it
                call = batch[0].context.call
                self._metrics.count("failed_batches", 1, call)
                extra = logging.fields(
                    call=call, requests=len(batch), problem=type(problem).__name__
                )
                log.info("batch_failed", extra=extra)
                # All requests of the batch fail: to repeat each would multiply the calls of a shard
                # that is overloaded or gone (ADR 54).
                if isinstance(problem, SHARD_FAILURES):
                    return [problem] * len(batch)
        return [await self._compute_one(job, pool, fetched) for job in batch]

    async def _compute_one(
        self, job: Job, pool: ComputePool | None, fetched_before: Fetched | None
    ) -> Any:
        try:
            return await self._execute([job], job.request, pool, fetched_before)
        except ServiceError as problem:
            return problem
        except (FeatureError, UnknownCandidate, DigestMismatch, RowUnavailable) as problem:
            return _with_cause(error_of(problem, job.request, job.lease.version), problem)
        except Exception as problem:
            # A request whose numbers overflow a tower is wrong; the same failure without numbers is
            # ours.
            at_fault = numbers_at_fault(problem, job.request, job.lease.version.manifest)
            if at_fault is not None:
                return _with_cause(at_fault, problem)
            if job.context.cancelled:  # no transport is left to log it
                extra = logging.fields(call=job.context.call, request_id=job.context.request_id)
                log.exception("request_failed", extra=extra)
            return _with_cause(Internal(INTERNAL_MESSAGE), problem)

    async def _execute(
        self,
        batch: Sequence[Job],
        request: Any,
        pool: ComputePool | None,
        fetched_before: Fetched | None = None,
        ends: Offsets | None = None,
    ) -> Any:
        call = batch[0].context.call
        execution = Execution(
            call,
            [job.context for job in batch],
            self._metrics,
            pool,
            self._scheduler.estimates,
            fetched_before,
            self._live_recall,
            self._score_drift,
            ends,
        )
        version = batch[0].lease.version
        try:
            while True:
                denied = version.denied
                compute = self._compute_functions[type(request)]
                result = await compute(version, request, self._settings, execution)
                execution.check()
                # A candidate of the result may have been withdrawn while it was computed.
                if all(map(is_, version.denied, denied)):
                    break
            coverage = execution.row_coverage
            if coverage < self._settings.shard_min_coverage:
                raise NotReady(
                    f"shards returned {coverage:.0%} of the rows; at least "
                    f"{self._settings.shard_min_coverage:.0%} are required (shard_min_coverage)"
                )
            coverage = min(coverage, execution.searched_share)
            if coverage < 1:
                result = replace(result, coverage=coverage)
        finally:
            execution.end()
            self._metrics.batch_finished(
                call, version.model, execution.phases, execution.counts, execution.lookups
            )
            for job in batch:
                job.context.phases.update(execution.phases)
        return result


def _with_cause(error: ServiceError, cause: Exception) -> ServiceError:
    error.__cause__ = cause
    return error
