"""Blocks of load in threes: nothing happens in the first and the last, what is judged happens in
between.

Both sides of a comparison so have the same moments in their middle: hosts drift by the second. The
blocks in which nothing happens are compared with each other too: what they differ by is noise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import psutil

from benchmarks.load import SUCCESS, Floats, Load

PERCENTS = (50, 99, 99.9)
CALLERS = 8
EXTENSION_S = 0.5
"""A block is extended by so much, or by its own length if that is shorter, until what was begun in
it is over.
"""


@dataclass(frozen=True)
class Block:
    """What one block of load saw.

    Attributes:
      latency_s: The latency of each successful request, [successful] float64.
      cpu_s: The CPU time of the service.
    """

    latency_s: Floats
    sent: int
    elapsed_s: float
    cpu_s: float


@dataclass(frozen=True)
class Round:
    """Three blocks at one rate: without, with, and without; `times`: how often it was done."""

    rate_per_s: float
    times: int
    before: Block
    during: Block
    after: Block


@dataclass(frozen=True)
class Pressure:
    """A load on a service, in rounds.

    Attributes:
      service: The id of its first process.
      block_s: The length of the block in which something happens; the others are half as long.
      interval_s: The minimum time from one thing that is done to the next.
      beside: What is done in the other blocks, of no effect on the service.
      share: The load, as a share of the maximum throughput of the service.
    """

    load: Load
    service: int
    block_s: float
    interval_s: float
    beside: Callable[[], None]
    share: float

    def round(
        self, act: Callable[[], None], seed: int, proceed: Callable[[], bool] = lambda: True
    ) -> Round:
        """Sends load while nothing happens, while `act` is called again and again, and once more
        without.
        """
        # Measured again for each block, since hosts are shared.
        rate_per_s = self.share * self.load.closed(CALLERS, self.block_s / 2).requests_per_s
        half_s = self.block_s / 2
        blocks = list[Block]()
        times = list[int]()
        with ThreadPoolExecutor(1) as acts:
            for seconds, what in (
                (half_s, self.beside),
                (self.block_s, act),
                (half_s, self.beside),
            ):
                acting = acts.submit(self._repeat, what, seconds, proceed)
                parts = [self._measure(rate_per_s, seconds, seed)]
                while not acting.done():
                    extension_s = min(seconds, EXTENSION_S)
                    parts.append(self._measure(rate_per_s, extension_s, seed + len(parts)))
                times.append(acting.result())
                blocks.append(_joined(parts))
        return Round(rate_per_s, times[1], *blocks)

    def _repeat(self, what: Callable[[], None], seconds: float, proceed: Callable[[], bool]) -> int:
        end_s = time.monotonic() + seconds
        times = 0
        while time.monotonic() < end_s and proceed():
            due_s = time.monotonic() + min(self.interval_s, seconds / 2)
            what()
            times += 1
            time.sleep(max(0, due_s - time.monotonic()))
        return times

    def _measure(self, rate_per_s: float, seconds: float, seed: int) -> Block:
        before_s = cpu_s(self.service)
        responses = self.load.open(rate_per_s, seconds, seed)
        latencies_s = responses.latency_s[responses.status == SUCCESS]
        return Block(
            latencies_s, len(responses.status), responses.elapsed_s, cpu_s(self.service) - before_s
        )


def _joined(parts: Sequence[Block]) -> Block:
    latencies = np.concatenate([part.latency_s for part in parts])
    sent_count, elapsed_s, spent_s = np.sum(
        [(part.sent, part.elapsed_s, part.cpu_s) for part in parts], axis=0
    )
    return Block(latencies, int(sent_count), elapsed_s, spent_s)


def cpu_s(service: int) -> float:
    """Returns the CPU seconds that a process and its children used so far."""
    parent = psutil.Process(service)
    return float(sum(sum(process.cpu_times()[:2]) for process in (parent, *parent.children())))


def sent_and_failed(rounds: Sequence[Round]) -> tuple[int, int]:
    """Counts the requests of some rounds, and those that did not succeed."""
    blocks = [
        block for measured in rounds for block in (measured.before, measured.during, measured.after)
    ]
    sent_count = sum(block.sent for block in blocks)
    return sent_count, sent_count - sum(len(block.latency_s) for block in blocks)


def compared(rounds: Sequence[Round], what: str) -> Iterator[str]:
    """Describes latencies without and with what was done, and the CPU that it took beyond the
    requests.
    """
    before, during, after = (
        [getattr(measured, name) for measured in rounds] for name in ("before", "during", "after")
    )
    for percent in PERCENTS:
        earlier, later, around, while_ = (
            np.percentile(np.concatenate([block.latency_s for block in blocks]), percent) * 1e3
            for blocks in (before, after, before + after, during)
        )
        yield (
            f"p{percent}: {around:.2f} ms without {what}, {while_:.2f} ms with them: x "
            f"{while_ / around:.2f}; noise x {later / earlier:.2f}"
        )
    calm, busy = (
        [(block.cpu_s, block.elapsed_s) for block in blocks] for blocks in (before + after, during)
    )
    (calm_s, calm_elapsed_s) = np.sum(calm, axis=0)
    (busy_s, busy_elapsed_s) = np.sum(busy, axis=0)
    each_ms = (
        (busy_s - calm_s * busy_elapsed_s / calm_elapsed_s)
        / max(1, sum(measured.times for measured in rounds))
        * 1e3
    )
    yield f"CPU of the service: {each_ms:.0f} ms for each of the {what}"
