"""Load on a service, for `rowcast bench`: at a rate (open loop) or by a number of callers that each
wait for their response (closed loop).

In an open loop, requests are sent at the instants of a Poisson process, whether or not earlier ones
have a response, and a latency counts from the instant at which its request was due. So a service
that stands still is charged with all the requests that it delays, not only with those in flight
(no coordinated omission).
"""

from __future__ import annotations

import asyncio
import itertools
import random
import selectors
import time
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from rowcast_client.calls import Call
from rowcast_client.client import AsyncClient
from rowcast_client.errors import DeadlineExceeded, InvalidArgument, RowcastError

IN_FLIGHT_MAX = 512
"""Maximum number of requests in flight; others wait for one of them to end, on the clock."""
REQUESTS_MAX = 10_000_000
"""Maximum number of requests of an open loop, whose instants are drawn before it starts."""
WARM_UP_MAX = 16
"""Maximum number of requests that open the connections before the clock starts."""
PROBE_S = 0.01
"""Time between two measurements of how late a closed loop's generator runs."""
SEED = 1
"""Seed of the instants: two runs with the same settings send at the same instants."""


@dataclass(frozen=True)
class LoadSettings:
    """How much load is sent, and for how long.

    Attributes:
      rate_per_s: Requests per second of an open loop; 0: the loop is closed.
      concurrency: The number of callers of a closed loop; 0: the loop is open.
      seconds: The time in which requests are sent.
      timeout_s: The timeout of each request, from the instant at which it was due.
    """

    rate_per_s: float
    concurrency: int
    seconds: float
    timeout_s: float

    def __post_init__(self) -> None:
        """Checks the values.

        Raises:
          InvalidArgument: Both or none of rate and concurrency are set, or a value is too small or
            too large.
        """
        if bool(self.rate_per_s) == bool(self.concurrency):
            raise InvalidArgument(
                f"the rate is {self.rate_per_s:g} and the concurrency {self.concurrency}: "
                "expected exactly one of them"
            )
        if min(self.rate_per_s, self.concurrency) < 0 or self.seconds <= 0:
            raise InvalidArgument(
                f"the rate is {self.rate_per_s:g}, the concurrency {self.concurrency} and the time "
                f"{self.seconds:g} s: expected positive numbers"
            )
        if self.concurrency > IN_FLIGHT_MAX:
            raise InvalidArgument(
                f"the concurrency is {self.concurrency}: expected at most {IN_FLIGHT_MAX}; run the "
                "command several times for more"
            )
        if self.rate_per_s * self.seconds > REQUESTS_MAX:
            raise InvalidArgument(
                f"{self.rate_per_s:g} requests per second for {self.seconds:g} s are more than "
                f"{REQUESTS_MAX} requests: lower the rate or the time"
            )


@dataclass
class Load:
    """What was sent, and what came back.

    Attributes:
      latencies_s: The latency of each successful request, in seconds.
      late_s: How late the generator itself ran, each time that it looked, in seconds: in an open
        loop, between the instant at which a request was due and that at which it was handed to the
        client.
      errors: The number of failed requests by their code.
      messages: The message of the first failure of each code.
      unfinished: The number of requests that had no response when the run was interrupted.
      elapsed_s: The time from the start to the end, or to the last response if that is later.
      cpu_s: CPU time of this process meanwhile.
      interrupted: Whether the run ended before its time.
    """

    latencies_s: array[float] = field(default_factory=lambda: array("d"))
    late_s: array[float] = field(default_factory=lambda: array("d"))
    errors: Counter[str] = field(default_factory=Counter)
    messages: dict[str, str] = field(default_factory=dict)
    unfinished: int = 0
    elapsed_s: float = 0.0
    cpu_s: float = 0.0
    interrupted: bool = False

    def fail(self, error: RowcastError) -> None:
        """Counts a failed request."""
        self.errors[error.code] += 1
        self.messages.setdefault(error.code, str(error))


def apply_load(
    open_client: Callable[[], AsyncClient], calls: Sequence[Call[Any]], settings: LoadSettings
) -> Load:
    """Sends calls in turns, from the first one on again after the last; the calling thread waits.

    An interrupt (Ctrl-C) ends the run, not the program: the result has what was measured so far.

    Args:
      open_client: Returns the client, whose calls are not tried again.
      calls: At least one call.
      settings: How much, and for how long.
    """

    async def run() -> Load:
        async with open_client() as client:
            return await _Generator(client, calls, settings).run()

    # Of the selectors, only this one waits for less than a millisecond.
    with asyncio.Runner(
        loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())
    ) as runner:
        return runner.run(run())


class _Generator:
    """Sends the requests of one run."""

    def __init__(
        self, client: AsyncClient, calls: Sequence[Call[Any]], settings: LoadSettings
    ) -> None:
        self._client = client
        self._calls = itertools.cycle(calls)
        self._settings = settings
        self._turns = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._load = Load()
        self._begun_s = time.perf_counter()

    async def run(self) -> Load:
        """Opens the connections, then sends the load."""
        settings = self._settings
        load = self._load
        cpu_s = time.process_time()
        try:
            warm_up = min(WARM_UP_MAX, settings.concurrency or WARM_UP_MAX)
            await asyncio.gather(*(self._warm_up() for _ in range(warm_up)))
            cpu_s = time.process_time()
            self._begun_s = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                if settings.rate_per_s:
                    await self._send_on_time(group)
                else:
                    callers = [
                        group.create_task(self._send_in_turn()) for _ in range(settings.concurrency)
                    ]
                    await self._probe(callers)
        except asyncio.CancelledError:
            load.interrupted = True
        load.elapsed_s = self._now_s()
        # The last request of an open loop may be due a little before the end.
        if not load.interrupted:
            load.elapsed_s = max(load.elapsed_s, settings.seconds)
        load.cpu_s = time.process_time() - cpu_s
        return load

    def _now_s(self) -> float:
        """Returns the time since the clock started, in seconds."""
        return time.perf_counter() - self._begun_s

    async def _warm_up(self) -> None:
        """Sends a request off the clock. Whatever it fails with will fail on the clock, too."""
        call = next(self._calls)
        with suppress(RowcastError):
            await self._client.send(call._replace(timeout_s=self._settings.timeout_s))

    async def _send_on_time(self, group: asyncio.TaskGroup) -> None:
        """Sends requests at the instants of a Poisson process with exactly as many as the rate
        promises: given their number, its instants are uniform.
        """
        settings = self._settings
        count = max(1, round(settings.rate_per_s * settings.seconds))
        draws = random.Random(SEED)  # noqa: S311 - no secret
        instants = array("d", sorted(draws.uniform(0, settings.seconds) for _ in range(count)))
        # Drawing them took time.
        self._begun_s = time.perf_counter()
        for due_s in instants:
            wait_s = due_s - self._now_s()
            # Also if it is late, so that responses are read between two requests.
            await asyncio.sleep(max(wait_s, 0))
            self._load.late_s.append(max(self._now_s() - due_s, 0.0))
            group.create_task(self._send(next(self._calls), due_s))

    async def _send_in_turn(self) -> None:
        """Sends one request after the other, as one caller."""
        while self._now_s() < self._settings.seconds:
            await self._send(next(self._calls), self._now_s())

    async def _probe(self, callers: Sequence[asyncio.Task[None]]) -> None:
        """Measures how late this process runs, until the callers have ended."""
        while not all(caller.done() for caller in callers):
            before_s = self._now_s()
            await asyncio.sleep(PROBE_S)
            self._load.late_s.append(max(self._now_s() - before_s - PROBE_S, 0.0))

    async def _send(self, call: Call[Any], due_s: float) -> None:
        """Sends a request, and counts what becomes of it."""
        self._load.unfinished += 1
        try:
            async with self._turns:
                remaining_s = due_s + self._settings.timeout_s - self._now_s()
                if remaining_s <= 0:
                    raise DeadlineExceeded(
                        f"{IN_FLIGHT_MAX} earlier requests had no response for "
                        f"{self._settings.timeout_s:g} s"
                    )
                await self._client.send(call._replace(timeout_s=remaining_s))
        except RowcastError as error:
            self._load.fail(error)
        else:
            self._load.latencies_s.append(self._now_s() - due_s)
        # An interrupt passes this line by.
        self._load.unfinished -= 1
