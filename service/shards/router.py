"""How a router calls its shards: all that a request needs at the same time.

Two replicas are drawn, and a call goes to the one with fewer calls in progress. If it fails, or
takes too long, another replica is called, as far as the retry budget of the shard permits; a
replica that fails more than others is ejected for a while. Every call names the bundle by its
fingerprint, so that responses of different bundles are never merged.

A replica may also return wrong numbers. Rows or scores that are not finite are requested from
another replica, which decides whether the replica or the data is at fault.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple
from weakref import WeakSet

import grpc

from bundle.format.manifest import Manifest
from bundle.tables import sharding
from bundle.tables.shard_number import ShardNumber
from service.config import ServiceSettings
from service.engine.computation import RemoteCall
from service.errors import DeadlineExceeded, Internal, NotReady, ServiceError
from service.observability import logging
from service.observability.metrics import RETRY_OUTCOMES, Metrics
from service.shards.failures import service_error_of
from service.shards.membership import Membership
from service.shards.outliers import RetryBudget
from service.shards.remote_version import RemoteVersion, ShardCall
from service.shards.replica import Key, Replica
from service.versions.rejections import ShardsMissing

log = logging.logger(__name__)

_ATTEMPTS_MAX = 3
"""Number of replicas that a call tries. The retry budget bounds the load of all calls, this bounds
the latency of one.
"""
_EJECTION_RATIO = 0.5
"""A replica is ejected only if another one fails at most this share as often. Under overload, all
fail alike, and an ejection would make it worse.
"""
_PROBLEM_CHARACTERS_MAX = 200
"""Length of a failure in the status and in the log; its text is from another process."""


class _Response(NamedTuple):
    """What a replica returned.

    Attributes:
      replica: The replica.
      message: The message.
      result: What was read of it.
      is_finite: Whether all numbers of it are finite that should be.
    """

    replica: Replica
    message: Any
    result: Any
    is_finite: bool


class Shards:
    """The shards of a router. Its coroutines run on one event loop."""

    def __init__(
        self, settings: ServiceSettings, metrics: Metrics, report: Callable[[], None] = lambda: None
    ) -> None:
        """Reads the files that the settings name.

        Args:
          settings: The settings of the router.
          metrics: Gets the measurements of calls.
          report: Called, on the event loop, whenever other replicas can be called.

        Raises:
          SettingsError: An address or a file cannot be used.
        """
        self._settings = settings
        self._metrics = metrics
        self._membership = Membership(settings, metrics, self._divisions_in_use, report)
        self._budgets: dict[ShardNumber, RetryBudget] = {}
        self._versions = WeakSet[RemoteVersion]()
        self._stop_lock = threading.Lock()
        self._stopped = False

    @property
    def replicas(self) -> Mapping[str, Replica]:
        """The replicas, by address."""
        return self._membership.replicas

    async def start(self) -> None:
        """Finds the shards, and follows what they hold from now on."""
        self.loop = asyncio.get_running_loop()
        await self._membership.start()

    async def stop(self) -> None:
        """Disconnects."""
        with self._stop_lock:
            self._stopped = True
        await self._membership.stop()

    def status(self) -> list[dict[str, Any]]:
        """Returns for every address its shard, the rows and partitions that it holds, which
        versions read them, and why it is not called.
        """
        versions = sorted(self._versions, key=lambda version: version.key)
        # Copies: the event loop changes both while another thread may be here.
        replicas = list(self.replicas.values())
        problems = list(self._membership.problems.items())
        entries = [_status_of(replica, versions) for replica in replicas]
        for source, problem in problems:
            entries.append(_status_entry(source, problem))
        return sorted(entries, key=lambda entry: (entry["shard"], entry["address"]))

    def reach(self, manifest: Manifest, fingerprint: int) -> RemoteVersion:
        """Returns a version through which its rows and partitions on the shards are read.

        Raises:
          ShardsMissing: No division of the version is complete.
        """
        key = manifest.model, manifest.version, fingerprint
        min_bytes = self._settings.shard_min_bytes
        # A version of which shards hold nothing needs none of them.
        total = 1
        if sharding.sharded_tables(manifest, min_bytes) or sharding.sharded_indexes(manifest):
            total = self._membership.division(key) or 0
        if not total:
            raise ShardsMissing(self._membership.missing(key))
        remote = RemoteVersion(self, manifest, key, total, self._settings)
        for table in remote.tables:
            # An alert watches for an increase, which the first loss would not be without a zero.
            self._metrics.count("lost_rows", 0, manifest.model, table)
        # Another set: `status` may be iterating over this one.
        self._versions = self._versions.union([remote])
        return remote

    def division(self, key: Key) -> int | None:
        """Returns into how many shards a bundle is divided. See `Membership.division`."""
        return self._membership.division(key)

    def _divisions_in_use(self) -> set[int]:
        """Returns the divisions that versions are read from."""
        return {version.total for version in self._versions if version.is_divided}

    @property
    def problem(self) -> str:
        """Why all versions of a model lack a shard; empty: each model has a complete version."""
        # One complete version suffices: shards drop old versions before routers do.
        keys_by_model: dict[str, list[Key]] = {}
        for version in self._versions:
            if version.is_divided:
                keys_by_model.setdefault(version.key[0], []).append(version.key)
        for keys in keys_by_model.values():
            if all(self.division(key) is None for key in keys):
                return self._membership.missing(max(keys))
        return ""

    def call_all(
        self, key: Key, calls: Sequence[ShardCall], left_s: float
    ) -> RemoteCall[list[Any]]:
        """Calls several shards at once.

        Returns:
          For each call, what was read of the response, or the error with which it failed.
        """
        left_s = min(left_s, self._settings.request_timeout_s)

        async def call() -> list[Any]:
            responses = await asyncio.gather(
                *[self.call(key, shard_call, left_s) for shard_call in calls],
                return_exceptions=True,
            )
            # The caller decides whether a lost shard fails the request. Bugs always do.
            for response in responses:
                if isinstance(response, BaseException) and not isinstance(response, ServiceError):
                    raise Internal(str(response)) from response
            return responses

        return RemoteCall(self._submit, call)

    def _submit(self, call: Coroutine[Any, Any, list[Any]]) -> Future[list[Any]]:
        """Runs a call on the event loop, for a thread that waits for it.

        Raises:
          NotReady: The service is shutting down.
        """
        # The event loop may end soon after `stop`: a thread would wait forever for what it does not
        # run any more. A load of a version goes on meanwhile.
        with self._stop_lock:
            if not self._stopped:
                return asyncio.run_coroutine_threadsafe(call, self.loop)
        call.close()
        raise NotReady("the service is shutting down")

    async def call(self, key: Key, call: ShardCall, left_s: float) -> Any:
        """Calls a shard; returns what was read of the response.

        Raises:
          NotReady: No replica of the shard can be reached.
          ServiceError: The call failed; see `service_error_of`.
        """
        shard = call.shard
        tried: list[Replica] = []
        responses: list[_Response] = []
        error: ServiceError = NotReady(
            f"model {key[0]!r} version {key[1]} lacks shard {shard}: no replica of it can be called"
        )
        budget = self._budget(shard)
        budget.deposit()
        end = self.loop.time() + left_s
        for attempt in range(_ATTEMPTS_MAX):
            replica = self._choose(key, shard, tried)
            if replica is None and attempt == 1 and isinstance(error, NotReady):
                # An address may stand for several processes: without another address, the same one
                # is tried again.
                replica = next((suspect for suspect in tried if suspect.suspect), None)
            if replica is None or (attempt and not self._may_retry(shard, end)):
                break

            # Half of the time remains for a retry, if there can be one.
            now = self.loop.time()
            left_s = end - now
            if self._membership.holding(key, shard, [*tried, replica]) and budget.permits(now):
                left_s /= 2
            tried.append(replica)
            try:
                response = await self._attempt(call, replica, left_s)
            except ServiceError as failure:
                error = failure
                if isinstance(error, DeadlineExceeded) and self.loop.time() >= end:
                    break
                continue

            responses.append(response)
            if self._is_decided(call, responses):
                break
        if not responses:
            raise error
        # If no replica returned anything else, the rules for what is not finite hold.
        return responses[-1].result

    def _is_decided(self, call: ShardCall, responses: Sequence[_Response]) -> bool:
        """Returns whether the last of the responses to a call counts, or another replica decides.
        All before it are not finite.
        """
        *earlier, last = responses
        if not last.is_finite:
            # If replicas agree, the data are at fault.
            return any(response.message == last.message for response in earlier)
        problem = "it returned NaN or an infinity, and another replica did not"
        for response in earlier:
            self._record_failure(call, response.replica, "NOT_FINITE", problem)
        return True

    def _budget(self, shard: ShardNumber) -> RetryBudget:
        if shard not in self._budgets:
            self._budgets[shard] = RetryBudget(self.loop.time())
            # Alerts watch for an increase, which the first count would not be without a zero.
            self._metrics.count("shard_ejections", 0, str(shard))
            for outcome in RETRY_OUTCOMES:
                self._metrics.count("shard_retries", 0, str(shard), outcome)
        return self._budgets[shard]

    def _may_retry(self, shard: ShardNumber, end: float) -> bool:
        """Counts a retry, if there is time and budget left for it."""
        now = self.loop.time()
        if now >= end:
            return False
        permitted = self._budgets[shard].withdraw(now)
        outcome = "sent" if permitted else "over_budget"
        self._metrics.count("shard_retries", 1, str(shard), outcome)
        return permitted

    def _choose(self, key: Key, shard: ShardNumber, tried: Sequence[Replica]) -> Replica | None:
        """Draws two replicas that were not tried, and returns the one with fewer calls in progress.

        Replicas that are not well are drawn only if no other is left. A call that has failed once
        is not sent to a replica on probation either.
        """
        untried = self._membership.holding(key, shard, tried)
        well = [replica for replica in untried if replica.is_well]
        proved = well
        if tried:
            proved = [replica for replica in well if not replica.outliers.on_probation]
        candidates = proved or well or untried
        if not candidates:
            return None
        # The best of all replicas would get the calls of every router at the same time.
        contenders = random.sample(candidates, min(2, len(candidates)))
        return min(contenders, key=lambda replica: replica.inflight)

    async def _attempt(self, call: ShardCall, replica: Replica, left_s: float) -> _Response:
        """Calls a replica, measures the response, and reads it.

        Raises:
          ServiceError: The call failed, or the response does not fit the request.
        """
        shard = str(call.shard)
        began = self.loop.time()
        try:
            message = await replica.call(call.method, call.request, left_s)
            method = call.method.lower()
            self._metrics.observe("shard_seconds", self.loop.time() - began, shard, method)
            self._metrics.count("shard_bytes", message.ByteSize(), shard)
            response = _read(call, replica, message)
        except grpc.aio.AioRpcError as failure:
            error = service_error_of(failure, call.shard)
            # Also a replica that stops, or that has retired the version: a poll shows which.
            if isinstance(error, NotReady):
                self._membership.suspect(replica)
            self._record_failure(call, replica, failure.code().name, failure.details() or "")
            raise error from failure
        except Internal as problem:
            self._record_failure(call, replica, "INTERNAL", str(problem))
            raise
        # Whether what is not finite is a fault of the replica, another one decides.
        if response.is_finite:
            replica.outliers.record(self.loop.time(), succeeded=True)
        return response

    def _record_failure(self, call: ShardCall, replica: Replica, code: str, problem: str) -> None:
        """Reports a failed call, and ejects its replica if it fails more than another one."""
        shard = call.shard
        self._metrics.count("shard_failures", 1, str(shard), code)
        extra = logging.fields(
            address=replica.address, shard=str(shard), code=code, problem=problem
        )
        log.info("shard_call_failed", extra=logging.limited(extra, replica.address, code))

        now = self.loop.time()
        replica.outliers.record(now, succeeded=False)
        if replica.outliers.problem or not replica.outliers.fails(now):
            return
        share_max = _EJECTION_RATIO * replica.outliers.failure_share(now)
        has_better_peer = any(
            peer.outliers.failure_share(now) <= share_max
            for peer in self.replicas.values()
            if peer.shard == shard and peer is not replica and peer.is_well
        )
        if not has_better_peer:
            return

        seconds = replica.outliers.eject(now, f"{code}: {problem}"[:_PROBLEM_CHARACTERS_MAX])
        self._report_ejection(replica, shard)
        self.loop.call_later(seconds, self._readmit, replica)

    def _report_ejection(self, replica: Replica, shard: ShardNumber) -> None:
        self._metrics.count("shard_ejections", 1, str(shard))
        self._membership.changed()
        extra = logging.fields(
            address=replica.address, shard=str(shard), problem=replica.outliers.problem
        )
        log.warning("shard_ejected", extra=extra)

    def _readmit(self, replica: Replica) -> None:
        """Ends the ejection of a replica, unless it was ended and begun again before."""
        # A poll that reaches the replica again ends the ejection early, and another may follow. The
        # timer of the second one ends it then.
        if replica.outliers.problem and self.loop.time() >= replica.outliers.ejected_until:
            replica.outliers.readmit()
            self._membership.changed()
            extra = logging.fields(address=replica.address, shard=str(replica.shard or ""))
            log.info("shard_readmitted", extra=extra)


def _read(call: ShardCall, replica: Replica, message: Any) -> _Response:
    """Reads the message of a replica.

    Raises:
      Internal: It does not fit the request, or is not of this release.
    """
    try:
        result = call.read(message)
        return _Response(replica, message, result, call.is_finite(result))
    except Internal:
        raise
    except Exception as problem:
        text = f"shard {call.shard} returned what cannot be read: {problem!r}"
        raise Internal(text) from problem


def _status_of(replica: Replica, versions: Sequence[RemoteVersion]) -> dict[str, Any]:
    """Returns the entry of a replica in the status."""
    entry = _status_entry(replica.address, replica.problem or replica.outliers.problem)
    entry["inflight"] = replica.inflight
    shard = replica.shard
    if shard is None:
        return entry

    entry["shard"] = str(shard)
    for version in versions:
        if version.key not in replica.bundles:
            continue
        model, number, _ = version.key
        name = f"{model}/{number}"
        entry["holds"][name] = version.held_by(shard)
        # Shards of several divisions may run at the same time; one division is read from.
        if version.total == shard.total:
            entry["serves"].append(name)
    return entry


def _status_entry(address: str, problem: str) -> dict[str, Any]:
    """Returns the entry in the status of an address, or of a source of addresses, that is not known
    to serve a shard.
    """
    return {
        "address": address,
        "shard": "",
        "holds": {},
        "serves": [],
        "inflight": 0,
        "problem": problem,
    }
