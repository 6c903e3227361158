"""The addresses of shards, and what the replica at each address holds, as a router knows them now.

Each source of addresses and each address is polled on its own, so that none delays another.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any

from bundle.tables.shard_number import ShardNumber
from service.config import ServiceSettings
from service.observability import logging
from service.observability.metrics import Metrics
from service.shards import addresses
from service.shards.credentials import ShardCredentials
from service.shards.replica import Key, Replica

log = logging.logger(__name__)

POLL_S = 1.0
"""Time between two polls of what a replica holds, and of a source of addresses."""
_REPOLL_S = 0.5
"""Time between two polls of a replica that does not respond: shorter, so that a restarted shard is
called again soon.
"""
_START_S = 2.0
"""How long the start waits for sources of addresses."""
_PROBLEMS_MAX = 4
"""Number of problems that a message names: a cluster may have hundreds of addresses."""


class Membership:
    """The replicas of all shards. Its coroutines run on one event loop.

    Attributes:
      replicas: The replicas, by address.
      problems: Why sources of addresses cannot be read, by source.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        metrics: Metrics,
        serving: Callable[[], Collection[int]],
        report: Callable[[], None],
    ) -> None:
        """Reads the files that the settings name.

        Args:
          settings: The settings of the router.
          metrics: Gets the number of replicas of each shard.
          serving: Returns the divisions that versions are read from, as numbers of shards.
          report: Called, on the event loop, whenever other replicas can be called.

        Raises:
          SettingsError: An address or a file cannot be used.
        """
        for source in settings.shard_addresses:
            addresses.check(source)
        self._settings = settings
        self._metrics = metrics
        self._serving = serving
        self._report = report
        self._credentials = ShardCredentials(settings)
        self.replicas: dict[str, Replica] = {}
        self.problems: dict[str, str] = {}
        self._addresses: dict[str, list[str]] = {}
        self._divisions: dict[Key, int | None] = {}
        self._counted = set[ShardNumber]()
        self._resolutions: list[asyncio.Task[None]] = []
        self._polls: dict[str, asyncio.Task[None]] = {}
        self._tasks = set[asyncio.Task[None]]()

    async def start(self) -> None:
        """Begins to poll every source of addresses, and every address for what it holds.

        Returns once every source and every address was polled, or once a source takes too long.
        """
        self._loop = asyncio.get_running_loop()
        resolved = {source: asyncio.Event() for source in self._settings.shard_addresses}
        self._resolutions = [
            self._loop.create_task(self._resolve_forever(source, event))
            for source, event in resolved.items()
        ]
        # A source that hangs, such as a dashboard, is not waited for: the others may suffice.
        waits = [self._loop.create_task(event.wait()) for event in resolved.values()]
        await asyncio.wait(waits, timeout=_START_S)
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*[replica.polled.wait() for replica in self.replicas.values()])

    async def stop(self) -> None:
        """Disconnects."""
        for task in (*self._resolutions, *self._polls.values(), *self._tasks):
            task.cancel()
        for replica in self.replicas.values():
            await replica.close()

    def holding(
        self, key: Key, shard: ShardNumber, excluded: Collection[Replica] = ()
    ) -> list[Replica]:
        """Returns the replicas of a shard that have loaded a bundle and can be called, except the
        excluded replicas.
        """
        return [
            replica
            for replica in self.replicas.values()
            if replica.shard == shard
            and key in replica.bundles
            and not replica.problem
            and replica not in excluded
        ]

    def division(self, key: Key) -> int | None:
        """Returns into how many shards a bundle is divided: the largest number of which all shards
        can be called, and preferably none is suspect; None: no division is complete.
        """
        # Any thread may call this. A change meanwhile replaces the dictionary, so that a result of
        # before the change is not stored in the new one.
        divisions = self._divisions
        if key not in divisions:
            divisions[key] = self._largest_division(key)
        return divisions[key]

    def _largest_division(self, key: Key) -> int | None:
        # A copy: the event loop changes the dictionary while another thread may be here.
        holding = [
            replica
            for replica in list(self.replicas.values())
            if replica.shard is not None and key in replica.bundles and not replica.problem
        ]
        reached_shards = {replica.shard for replica in holding}
        well_shards = {replica.shard for replica in holding if not replica.suspect}
        totals = sorted(
            {shard.total for shard in reached_shards if shard is not None}, reverse=True
        )
        # A complete division without suspects is better than a larger one that is about to fail.
        for callable_shards in (well_shards, reached_shards):
            for total in totals:
                if all(shard in callable_shards for shard in _shards_of(total)):
                    return total
        return None

    def missing(self, key: Key) -> str:
        """Returns why no division of a bundle is complete."""
        replicas = [
            replica for replica in list(self.replicas.values()) if replica.shard is not None
        ]
        reached = [replica for replica in replicas if not replica.problem]
        if not reached:
            problems = [
                f"{replica.address}: {replica.problem}" for replica in list(self.replicas.values())
            ]
            problems += [f"{source}: {problem}" for source, problem in list(self.problems.items())]
            reasons = "; ".join(problems[:_PROBLEMS_MAX]) or "no address is known"
            return f"no shard can be reached: {reasons}"

        version = f"model {key[0]!r} version {key[1]}"
        held_shards = {replica.shard for replica in reached if key in replica.bundles}
        problems = []
        for total in sorted(
            {replica.shard.total for replica in reached if replica.shard}, reverse=True
        ):
            absent = [str(shard) for shard in _shards_of(total) if shard not in held_shards]
            # One shard of each division: the operator sees which division was meant.
            problems += [f"no address holds shard {shard} of it" for shard in absent[:1]]
        problems += [
            f"{replica.address} has another bundle as {version}; copy the same bundle to all shards"
            for replica in reached
            if any(bundle[:2] == key[:2] and bundle != key for bundle in replica.bundles)
        ]
        problems += [
            f"{replica.address}: {replica.problem}" for replica in replicas if replica.problem
        ]
        return f"{version}: {'; '.join(problems[:_PROBLEMS_MAX])}"

    def suspect(self, replica: Replica) -> None:
        """Notes that a call did not reach a replica, and polls it at once."""
        # Many calls fail at once when a replica ends; the first one starts the poll.
        if replica.suspect:
            return
        replica.suspect = True
        self.changed()
        self._start_task(self._describe(replica))

    def changed(self) -> None:
        """Forgets the divisions that were found, and counts the replicas of each shard."""
        self._divisions = {}
        counts = Counter(
            replica.shard
            for replica in self.replicas.values()
            if not replica.problem and not replica.outliers.problem
        )
        known_totals = {
            replica.shard.total for replica in self.replicas.values() if replica.shard is not None
        }
        # Before a version is loaded, every division may become the one in use.
        totals = self._serving() or known_totals
        counted = {shard for total in totals for shard in _shards_of(total)}
        counted |= {shard for shard in counts if shard is not None}
        for shard in counted:
            self._metrics.set("shard_replicas", counts[shard], str(shard))
        for shard in self._counted - counted:
            # A shard of a division that is no longer in use: 0 would count as a lost shard.
            self._metrics.set("shard_replicas", math.nan, str(shard))
        self._counted = counted
        self._report()

    async def _resolve_forever(self, source: str, resolved: asyncio.Event) -> None:
        """Follows a source of addresses; sets the event after the first poll, even a failed one, so
        that the start does not wait for it.
        """
        while True:
            try:
                await self._resolve(source)
            except Exception:
                log.exception("shards_poll_failed")
            resolved.set()
            await asyncio.sleep(POLL_S)

    async def _resolve(self, source: str) -> None:
        """Brings the replicas up to date with a source of addresses; they stay as they are if it
        cannot be read now.
        """
        try:
            self._addresses[source] = await addresses.resolve(source)
        except (OSError, UnicodeError) as problem:
            # Logged once, not every second while it lasts.
            if self.problems.get(source) != str(problem):
                log.warning(
                    "shard_addresses_unknown",
                    extra=logging.fields(source=source, problem=str(problem)),
                )
            self.problems[source] = str(problem)
            return
        self.problems.pop(source, None)
        self._update_replicas()

    def _update_replicas(self) -> None:
        """Creates replicas for new addresses, and removes those whose address is gone."""
        names_by_address = {
            address: addresses.name_of(source)
            for source in self._settings.shard_addresses
            for address in self._addresses.get(source, ())
        }
        for address in names_by_address.keys() - self.replicas.keys():
            replica = Replica(address, names_by_address[address], self._credentials, self._settings)
            self.replicas[address] = replica
            self._polls[address] = self._loop.create_task(self._describe_forever(replica))
        for address in self.replicas.keys() - names_by_address.keys():
            replica = self.replicas.pop(address)
            self._polls.pop(address).cancel()
            self._start_task(self._close(replica))
            self.changed()

    def _start_task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _close(self, replica: Replica) -> None:
        """Disconnects from a replica whose address is gone, once its calls are complete."""
        while replica.inflight:
            await asyncio.sleep(POLL_S)
        await replica.close()

    async def _describe_forever(self, replica: Replica) -> None:
        """Follows what a replica holds."""
        while True:
            try:
                await self._describe(replica)
            except Exception:
                log.exception("shards_poll_failed")
            replica.polled.set()
            await asyncio.sleep(_REPOLL_S if replica.problem else POLL_S)

    async def _describe(self, replica: Replica) -> None:
        """Polls a replica for what it holds."""
        problem_before = replica.problem
        state_before = replica.state
        await replica.describe()
        if replica.state == state_before:
            return
        self.changed()
        about = logging.fields(
            address=replica.address, shard=str(replica.shard or ""), problem=replica.problem
        )
        # Only the code is compared, since the text after it may differ at each poll.
        code, _, _ = replica.problem.partition(":")
        code_before, _, _ = problem_before.partition(":")
        if replica.problem and code != code_before:
            log.warning("shard_unreachable", extra=about)
        elif problem_before and not replica.problem:
            # It was not reached and is again, such as after a restart: it need not wait, but is on
            # probation.
            if replica.outliers.problem:
                replica.outliers.readmit()
                self.changed()
            log.info("shard_reached", extra=about)


def _shards_of(total: int) -> Iterable[ShardNumber]:
    return (ShardNumber(number, total) for number in range(1, total + 1))
