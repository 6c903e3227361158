"""How a router calls its shards: all that a request needs at the same time.

A call goes to the replica with fewer calls in progress of two that are drawn. If it fails, or takes
too long, another replica is called, as far as the retry budget of the shard permits; a replica that
fails more than others is ejected for a while. Every call names the bundle by its fingerprint, so
that answers of different bundles are never merged.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakSet

import grpc

from bundle.format.manifest import Manifest
from bundle.tables import sharding
from bundle.tables.sharding import ShardNumber
from service.config import ServiceSettings
from service.engine.computation import RemoteCall
from service.engine.limits import NotFinite
from service.errors import DeadlineExceeded, Internal, NotReady, ServiceError
from service.observability import logging
from service.observability.metrics import RETRY_OUTCOMES, Metrics
from service.shards.failures import service_error_of
from service.shards.membership import Membership
from service.shards.outliers import RetryBudget
from service.shards.remote_version import RemoteVersion, ShardCall
from service.shards.replica import Key, Replica
from service.versions.loader import ShardsMissing

log = logging.logger(__name__)

_ATTEMPTS_MAX = 3


class Shards:
    """The shards of a router. Its coroutines run on one event loop."""

    def __init__(
        self, settings: ServiceSettings, metrics: Metrics, report: Callable[[], None] = lambda: None
    ) -> None:
        """Reads the files that the settings name.

        Args:
          settings: The settings of the router.
          metrics: Gets what is measured of calls.
          report: Called, on the event loop, whenever other replicas can be called.

        Raises:
          SettingsError: an address or a file cannot be used.
        """
        self._settings = settings
        self._metrics = metrics
        self._membership = Membership(settings, metrics, self._serving, report)
        self._budgets: dict[ShardNumber, RetryBudget] = {}
        self._versions = WeakSet[RemoteVersion]()

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
        await self._membership.stop()

    def status(self) -> list[dict[str, Any]]:
        """Returns of every address its shard, the rows and partitions that it holds, which versions
        read them, and why it is not called.
        """
        versions = sorted(self._versions, key=lambda version: version.key)
        shown: list[dict[str, Any]] = []
        for replica in list(self.replicas.values()):
            shard = replica.shard
            held = [version for version in versions if version.key in replica.bundles]
            shown.append(
                {
                    "address": replica.address,
                    "shard": "" if shard is None else str(shard),
                    "holds": {
                        _shown(version.key): version.held_by(shard)
                        for version in held
                        if shard is not None
                    },
                    "serves": [
                        _shown(version.key)
                        for version in held
                        if shard is not None and version.total == shard.total
                    ],
                    "inflight": replica.inflight,
                    "problem": replica.problem or replica.outliers.problem,
                }
            )
        unknown = {"shard": "", "holds": {}, "serves": [], "inflight": 0}
        shown += [
            {"address": source, **unknown, "problem": problem}
            for source, problem in list(self._membership.problems.items())
        ]
        return sorted(shown, key=lambda entry: (entry["shard"], entry["address"]))

    def reach(self, manifest: Manifest, fingerprint: int) -> RemoteVersion:
        """Returns what reaches the shards of a version.

        Raises:
          ShardsMissing: no division of it is complete.
        """
        key = manifest.model, manifest.version, fingerprint
        min_bytes = self._settings.shard_min_bytes
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

    def _serving(self) -> set[int]:
        """Returns the divisions that versions are read from."""
        return {version.total for version in self._versions if version.is_divided}

    @property
    def problem(self) -> str:
        """Which shard no replica can be called of, for any version of a model; empty: all have one.

        Shards drop old versions before routers do.
        """
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
          What was read of each response, or the error with which the call failed.
        """
        left_s = min(left_s, self._settings.request_timeout_s)

        async def call() -> list[Any]:
            responses = await asyncio.gather(
                *[self.call(key, each, left_s) for each in calls], return_exceptions=True
            )
            for response in responses:
                if isinstance(response, NotFinite):
                    raise response
                if isinstance(response, BaseException) and not isinstance(response, ServiceError):
                    raise Internal(str(response)) from response
            return responses

        return RemoteCall(self.loop, call)

    async def call(self, key: Key, call: ShardCall, left_s: float) -> Any:
        """Calls a shard; returns what was read of the response.

        Raises:
          NotReady: No replica of the shard can be reached; names it.
          NotFinite: A score is beyond float32.
          ServiceError: The call failed; see `service_error_of`.
        """
        shard = call.shard
        tried: list[Replica] = []
        error: ServiceError = NotReady(
            f"model {key[0]!r} version {key[1]} lacks shard {shard}: no replica of it can be called"
        )
        budget = self._budget(shard)
        budget.deposit()
        end = self.loop.time() + left_s
        for attempt in range(_ATTEMPTS_MAX):
            replica = self._choose(key, shard, tried)
            if replica is None and isinstance(error, NotReady):
                # An address may stand for several processes: where there is no other, it is tried
                # again.
                replica = next((each for each in tried if each.suspect), None)
                replica = replica if attempt == 1 else None
            if replica is None or (attempt and not self._may_retry(shard, end)):
                break
            left_s = end - self.loop.time()
            if self._membership.holding(key, shard, [*tried, replica]) and budget.permits(
                self.loop.time()
            ):
                left_s /= 2
            tried.append(replica)
            try:
                return await self._hedged(key, call, replica, tried, left_s)
            except ServiceError as failure:
                error = failure
                if isinstance(error, DeadlineExceeded) and self.loop.time() >= end:
                    break
        raise error

    def _budget(self, shard: ShardNumber) -> RetryBudget:
        if shard not in self._budgets:
            self._budgets[shard] = RetryBudget(self.loop.time())
            # Alerts watch for an increase, which the first one would not be without a zero.
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

        Those that are not well are drawn only if no other is left. A call that has failed once is
        not sent to a replica on probation either.
        """
        left = self._membership.holding(key, shard, tried)
        well = [replica for replica in left if replica.is_well]
        proved = [replica for replica in well if not (tried and replica.outliers.on_probation)]
        candidates = proved or well or left
        if not candidates:
            return None
        drawn = random.sample(candidates, min(2, len(candidates)))
        return min(drawn, key=lambda replica: replica.inflight)

    async def _hedged(
        self, key: Key, call: ShardCall, replica: Replica, tried: list[Replica], left_s: float
    ) -> Any:
        """Calls a replica, and a second one if the first takes longer than usual."""
        percentile = self._settings.shard_hedge_percentile
        if not percentile:
            return await self._attempt(call, replica, left_s)
        first = asyncio.ensure_future(self._attempt(call, replica, left_s))
        usual_s = replica.percentile_s(percentile)
        done, _ = await asyncio.wait([first], timeout=None if math.isinf(usual_s) else usual_s)
        other = None if done else self._choose(key, call.shard, tried)
        if other is None or not self._budgets[call.shard].withdraw(self.loop.time()):
            return await first
        tried.append(other)
        self._metrics.count("shard_hedges", 1, str(call.shard))
        calls = {first, asyncio.ensure_future(self._attempt(call, other, left_s - usual_s))}
        answered: list[asyncio.Future[Any]] = []
        try:
            while calls and not answered:
                done, calls = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
                answered = [each for each in done if each.exception() is None]
            return (answered or [first])[0].result()
        finally:
            for each in calls:
                each.cancel()

    async def _attempt(self, call: ShardCall, replica: Replica, left_s: float) -> Any:
        """Calls a replica, measures what comes back, and reads it.

        Raises:
          ServiceError: The call failed, or the response does not fit the request.
          NotFinite: A score is beyond float32.
        """
        shard = str(call.shard)
        began = self.loop.time()
        try:
            response = await replica.call(call.method, call.request, left_s)
            method = call.method.lower()
            self._metrics.observe("shard_seconds", self.loop.time() - began, shard, method)
            self._metrics.count("shard_bytes", response.ByteSize(), shard)
            result = _read(call, response)
        except grpc.aio.AioRpcError as failure:
            error = service_error_of(failure, call.shard)
            if isinstance(error, NotReady):  # also where it stops, or has retired the version
                self._membership.suspect(replica)
            self._failed(call, replica, failure.code().name, failure.details() or "")
            raise error from failure
        except Internal as problem:
            self._failed(call, replica, "INTERNAL", str(problem))
            raise
        replica.outliers.record(self.loop.time(), succeeded=True)
        return result

    def _failed(self, call: ShardCall, replica: Replica, code: str, problem: str) -> None:
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
        share = replica.outliers.failure_share(now)
        others = [
            other
            for other in self.replicas.values()
            if other.shard == shard and other is not replica and other.is_well
        ]
        if not any(other.outliers.failure_share(now) <= share / 2 for other in others):
            return  # All fail alike, such as under overload: to eject one makes it worse.
        seconds = replica.outliers.eject(now, f"{code}: {problem}"[:200])
        self._metrics.count("shard_ejections", 1, str(shard))
        self._membership.changed()
        extra = logging.fields(
            address=replica.address,
            shard=str(shard),
            seconds=seconds,
            problem=replica.outliers.problem,
        )
        log.warning("shard_ejected", extra=extra)
        self.loop.call_later(seconds, self._readmit, replica)

    def _readmit(self, replica: Replica) -> None:
        """Ends the ejection of a replica, unless it was ended and begun again before."""
        if replica.outliers.problem and self.loop.time() >= replica.outliers.ejected_until:
            replica.outliers.readmit()
            self._membership.changed()
            extra = logging.fields(address=replica.address, shard=str(replica.shard or ""))
            log.info("shard_readmitted", extra=extra)


def _read(call: ShardCall, response: Any) -> Any:
    """Returns what is read of a response.

    Raises:
      NotFinite: A score is beyond float32.
      Internal: The response does not fit the request, or is not of this release.
    """
    try:
        return call.read(response)
    except (NotFinite, Internal):
        raise
    except Exception as problem:
        message = f"shard {call.shard} returned what cannot be read: {problem!r}"
        raise Internal(message) from problem


def _shown(key: Key) -> str:
    """Returns a bundle as the status names it."""
    return f"{key[0]}/{key[1]}"
