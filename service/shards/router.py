"""What a router knows of its shards, and how it calls them: all that a request needs at the same
time.

A call goes to the replica with fewer calls in progress of two that are drawn; if that fails, or
takes too long, to another one, once. Every call names the bundle by its fingerprint, so that
answers of different bundles are never merged.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping
from functools import partial
from typing import Any
from weakref import WeakSet

import grpc

from bundle.format.manifest import Manifest
from bundle.tables import sharding
from bundle.tables.sharding import ShardNumber
from service.config import ServiceSettings
from service.engine.computation import RemoteCall
from service.errors import DeadlineExceeded, Internal, NotReady, ServiceError
from service.observability import logging
from service.observability.metrics import Metrics
from service.shards import addresses
from service.shards.credentials import ShardCredentials
from service.shards.failures import service_error_of
from service.shards.remote_version import RemoteVersion
from service.shards.replica import Key, Replica
from service.versions.loader import ShardsMissing

log = logging.logger(__name__)

Call = Callable[[Replica, float], Coroutine[Any, Any, Any]]
"""Calls a method of a replica, within some seconds."""
POLL_S = 1.0
"""Between two polls of what every replica holds."""


class Shards:
    """The replicas of all shards that a router knows. Its coroutines run on one event loop."""

    def __init__(self, settings: ServiceSettings, metrics: Metrics) -> None:
        """Reads the files that the settings name.

        Raises:
          SettingsError: an address or a file cannot be used.
        """
        for source in settings.shard_addresses:
            addresses.check(source)
        self._settings = settings
        self._metrics = metrics
        self._credentials = ShardCredentials(settings)
        self.replicas: dict[str, Replica] = {}
        self.problems: dict[str, str] = {}
        self._gone: list[Replica] = []
        self._versions = WeakSet[RemoteVersion]()
        self._polling: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Polls every address for what it holds, now and every POLL_S."""
        self.loop = asyncio.get_running_loop()
        await self._poll()
        self._polling = asyncio.create_task(self._poll_forever())

    async def stop(self) -> None:
        """Disconnects."""
        if self._polling is not None:
            self._polling.cancel()
        for replica in (*self.replicas.values(), *self._gone):
            await replica.close()

    def status(self) -> list[dict[str, Any]]:
        """Returns of every address its shard, the rows and partitions that it holds, and why it is
        not called.
        """
        found = [
            {
                "address": each.address,
                "shard": "" if each.shard is None else str(each.shard),
                "holds": {
                    f"{version.key[0]}/{version.key[1]}": version.held_by(each.shard)
                    for version in sorted(self._versions, key=lambda version: version.key)
                    if each.shard is not None and version.key in each.bundles
                },
                "inflight": each.inflight,
                "problem": each.problem,
            }
            for each in list(self.replicas.values())
        ]
        unknown = {"shard": "", "holds": {}, "inflight": 0}
        found += [
            {"address": source, **unknown, "problem": each}
            for source, each in list(self.problems.items())
        ]
        return sorted(found, key=lambda each: (each["shard"], each["address"]))

    def reach(self, manifest: Manifest, fingerprint: int) -> RemoteVersion:
        """Returns what reaches the shards of a version.

        Raises:
          ShardsMissing: a part of it is at no address, or the shards do not fit each other.
        """
        key = manifest.model, manifest.version, fingerprint
        min_bytes = self._settings.shard_min_bytes
        sharded = sharding.sharded_tables(manifest, min_bytes) or sharding.sharded_indexes(manifest)
        remote = RemoteVersion(
            self.call_all, manifest, key, self._total(key) if sharded else 1, min_bytes
        )
        for table in remote.tables:
            # An alert watches for an increase, which the first loss would not be without a zero.
            self._metrics.count("lost_rows", 0, manifest.model, table)
        # Another set: `status` may be iterating over this one.
        self._versions = self._versions.union([remote])
        return remote

    def holding(self, key: Key, shard: ShardNumber, but: Collection[Replica] = ()) -> list[Replica]:
        """Returns the replicas of a shard that have loaded a bundle and can be called, but for
        some.
        """
        every = [each for each in list(self.replicas.values()) if each not in but]
        return [
            each
            for each in every
            if each.shard == shard and key in each.bundles and not each.problem
        ]

    def _total(self, key: Key) -> int:
        """Returns how many shards hold a bundle."""
        what = f"model {key[0]!r} version {key[1]}"
        reached = [each for each in list(self.replicas.values()) if not each.problem]
        every = [(each.shard, each) for each in reached if each.shard is not None]
        if not every:
            tried = [f"{each['address']}: {each['problem']}" for each in self.status()]
            raise ShardsMissing(
                f"no shard can be reached: {'; '.join(tried[:4]) or 'no address is known'}"
            )
        total = every[0][0].total
        min_bytes = self._settings.shard_min_bytes
        for shard, each in every:
            if each.min_bytes != min_bytes:
                message = (
                    f"{each.address} divides tables of at least {each.min_bytes} bytes, and this "
                    f"router {min_bytes}"
                )
                raise ShardsMissing(f"{message}: --shard-min-bytes must be the same")
            if shard.total != total:
                first = f"{every[0][1].address} is shard {every[0][0]}"
                raise ShardsMissing(
                    f"the shards do not match: {first}, {each.address} is shard {shard}"
                )
            if any(one[:2] == key[:2] and one != key for one in each.bundles):
                raise ShardsMissing(
                    f"{each.address} has another bundle as {what}; copy the same bundle to all "
                    "shards"
                )
        for number in range(1, total + 1):
            if not self.holding(key, ShardNumber(number, total)):
                raise ShardsMissing(f"{what}: no address holds shard {number}/{total} of it")
        return total

    def call_all(
        self, key: Key, method: str, requests: Mapping[ShardNumber, Any], left_s: float
    ) -> RemoteCall[dict[ShardNumber, Any]]:
        """Calls a method of several shards at once.

        Returns:
          The response of each shard, or the ServiceError with which its call failed.
        """
        left_s = min(left_s, self._settings.request_timeout_s)

        async def call() -> dict[ShardNumber, Any]:
            calls = [
                self.call(key, shard, method, request, left_s)
                for shard, request in requests.items()
            ]
            responses = await asyncio.gather(*calls, return_exceptions=True)
            for response in responses:
                if isinstance(response, BaseException) and not isinstance(response, ServiceError):
                    raise Internal(str(response)) from response
            return dict(zip(requests, responses, strict=True))

        return RemoteCall(self.loop, call)

    async def call(
        self, key: Key, shard: ShardNumber, method: str, request: Any, left_s: float
    ) -> Any:
        """Calls a method of a shard.

        Only a replica that is gone, or that takes too long, is replaced by another one, once.

        Raises:
          NotReady: No replica of the shard can be reached; names it.
          ServiceError: The call failed; see `service_error_of`.
        """
        tried: list[Replica] = []
        call = partial(self._timed, shard, method, request)
        choose = partial(self._choose, key, shard, tried)
        problem = "no replica of it is known"
        end = self.loop.time() + left_s
        for _ in range(2):
            # An address may stand for several processes: where there is no other, it is tried
            # again.
            replica = choose() or next(iter(tried), None)
            if replica is None:
                break
            alone = not self.holding(key, shard, tried)
            left_s = end - self.loop.time()
            try:
                return await self._hedged(
                    shard, replica, choose, call, left_s if alone else left_s / 2
                )
            except grpc.aio.AioRpcError as failure:
                self._metrics.count("shard_failures", 1, str(shard), failure.code().name)
                error = service_error_of(failure, f"shard {shard} at {replica.address}")
                in_time = not alone and self.loop.time() < end
                if not isinstance(error, NotReady) and not (
                    isinstance(error, DeadlineExceeded) and in_time
                ):
                    # Another replica would fail as well, or make an overload worse.
                    raise error from failure
                problem = str(error)
                if alone and failure.code() is not grpc.StatusCode.UNAVAILABLE:
                    break
        raise NotReady(f"model {key[0]!r} version {key[1]} lacks shard {shard}: {problem}")

    def _choose(self, key: Key, shard: ShardNumber, tried: list[Replica]) -> Replica | None:
        """Draws two replicas that were not tried, and takes the one with fewer calls in
        progress.
        """
        left = self.holding(key, shard, tried)
        if not left:
            return None
        chosen = min(random.sample(left, min(2, len(left))), key=lambda each: each.inflight)
        tried.append(chosen)
        return chosen

    async def _hedged(
        self,
        shard: ShardNumber,
        replica: Replica,
        choose: Callable[[], Replica | None],
        call: Call,
        left_s: float,
    ) -> Any:
        """Calls a replica, and a second one if the first takes longer than usual."""
        percentile = self._settings.shard_hedge_percentile
        if not percentile:
            return await call(replica, left_s)
        first = asyncio.ensure_future(call(replica, left_s))
        usual_s = replica.percentile_s(percentile)
        done, _ = await asyncio.wait([first], timeout=None if math.isinf(usual_s) else usual_s)
        other = None if done else choose()
        if other is None:
            return await first
        self._metrics.count("shard_hedges", 1, str(shard))
        calls = {first, asyncio.ensure_future(call(other, left_s - usual_s))}
        answered: list[asyncio.Future[Any]] = []
        try:
            while calls and not answered:
                done, calls = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
                answered = [each for each in done if each.exception() is None]
            return (answered or [first])[0].result()
        finally:
            for each in calls:
                each.cancel()

    async def _timed(
        self, shard: ShardNumber, method: str, request: Any, replica: Replica, left_s: float
    ) -> Any:
        """Calls a replica, and measures what comes back."""
        began = self.loop.time()
        answer = await replica.call(method, request, left_s)
        self._metrics.observe("shard_seconds", self.loop.time() - began, str(shard), method.lower())
        self._metrics.count("shard_bytes", answer.ByteSize(), str(shard))
        return answer

    async def _poll_forever(self) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            try:
                await self._poll()
            except Exception:
                log.exception("shards_poll_failed")

    async def _poll(self) -> None:
        """Brings the replicas up to date with the sources of addresses, and polls each for what it
        holds.
        """
        for replica in [
            each for each in self._gone if not each.inflight
        ]:  # the others answer first
            self._gone.remove(replica)
            await replica.close()
        known: dict[str, str] = {}
        for source in self._settings.shard_addresses:
            known |= dict.fromkeys(await self._resolved(source), addresses.name_of(source))
        for address in set(known) - set(self.replicas):
            self.replicas[address] = Replica(address, known[address], self._credentials)
        self._gone += [self.replicas.pop(address) for address in set(self.replicas) - set(known)]
        replicas = list(self.replicas.values())
        before = [each.problem for each in replicas]
        await asyncio.gather(*(each.describe() for each in replicas))
        for each, problem in zip(replicas, before, strict=True):
            about = logging.fields(
                address=each.address, shard=str(each.shard or ""), problem=each.problem
            )
            if each.problem and each.problem != problem:
                log.warning("shard_unreachable", extra=about)
            elif problem and not each.problem:
                log.info("shard_reached", extra=about)
        counts = Counter(each.shard for each in replicas if not each.problem)
        for total in {each.shard.total for each in replicas if each.shard is not None}:
            for number in range(1, total + 1):
                shard = ShardNumber(number, total)
                self._metrics.set("shard_replicas", counts[shard], str(shard))

    async def _resolved(self, source: str) -> set[str]:
        """Returns the addresses of a source; all that are known if it cannot be read now."""
        try:
            found = set(await addresses.resolve(source))
        except OSError as problem:
            if self.problems.get(source) != str(problem):
                log.warning(
                    "shard_addresses_unknown",
                    extra=logging.fields(source=source, problem=str(problem)),
                )
            self.problems[source] = str(problem)
            return set(self.replicas)
        self.problems.pop(source, None)
        return found
