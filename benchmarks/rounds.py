"""Contestants measured in turns: each has its block of load in every round, the others stopped
meanwhile.

Hosts are noisy and the generator may share the cores, so only ratios taken in one run mean
anything: a figure is the median of its rounds, a ratio the median of the ratios of its rounds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from statistics import median
from typing import Protocol

from benchmarks.load import Load, Responses
from benchmarks.services import Program

CALLERS = (1, 8, 32)
SETTLE_S = 0.2
"""Time before its block in which each responds unmeasured: it was stopped, and its timers are due.
"""


@dataclass(frozen=True)
class Block:
    """What one contestant did in one round.

    Attributes:
      cpu_ms, generator_ms: CPU a request, of the program and of the load generator.
      failed: The share of the requests that were rejected or failed.
    """

    per_s: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float
    generator_ms: float
    failed: float


def block_of(responses: Responses, cpu_s: float) -> Block:
    """Returns the figures of what came back."""
    count = max(1, len(responses.status))
    return Block(
        responses.requests_per_s,
        responses.percentile_ms(50),
        responses.percentile_ms(99),
        cpu_s / max(1, responses.succeeded) * 1e3,
        responses.generator_s / count * 1e3,
        responses.failed / count,
    )


class Contestant(Protocol):
    """What has a block in each round."""

    @property
    def name(self) -> str:
        """Returns its name, which no other contestant has."""

    def measure(self, callers: int, seconds: float) -> Block:
        """Measures one block with this number of callers."""


@dataclass(frozen=True)
class Called:
    """A way to call a program, which is stopped between its blocks."""

    name: str
    program: Program
    load: Load

    def measure(self, callers: int, seconds: float) -> Block:
        """Measures one block with this number of callers."""
        self.program.resume()
        self.load.closed(callers, min(SETTLE_S, seconds))
        before = self.program.cpu_s()
        responses = self.load.closed(callers, seconds)
        cpu_s = self.program.cpu_s() - before
        self.program.pause()
        return block_of(responses, cpu_s)


class Rounds:
    """Blocks of load, as they are measured."""

    def __init__(self, seconds: float) -> None:
        """Measures blocks of `seconds` seconds each."""
        self._seconds = seconds
        self._seen: dict[tuple[str, int], list[Block]] = defaultdict(list)

    def run(
        self, group: Sequence[Contestant], rounds: int, callers: Sequence[int] = CALLERS
    ) -> None:
        """Measures the contestants of a group in turns, at each number of callers."""
        for number in range(rounds):
            for count in callers:
                for contestant in group if number % 2 else reversed(group):
                    self.add(contestant.name, count, contestant.measure(count, self._seconds))

    def add(self, name: str, callers: int, block: Block) -> None:
        """Adds what a contestant did in one round."""
        self._seen[name, callers].append(block)

    def callers(self, name: str) -> list[int]:
        """Returns the numbers of callers at which a contestant was measured."""
        return [callers for contestant, callers in self._seen if contestant == name]

    def block(self, name: str, callers: int) -> Block:
        """Returns the medians of the rounds."""
        blocks = self._seen[name, callers]
        return Block(
            *(
                median(getattr(block, field) for block in blocks)
                for field in Block.__dataclass_fields__
            )
        )

    def best(self, name: str) -> Block:
        """Returns the block with the highest throughput."""
        return max(
            (self.block(name, callers) for callers in self.callers(name)),
            key=lambda block: block.per_s,
        )

    def ratio(self, name: str, baseline: str, callers: int, field: str = "per_s") -> float:
        """Returns the median of one contestant's figure by another's, round by round; nan if a
        figure is 0.
        """
        pairs = zip(self._seen[name, callers], self._seen[baseline, callers], strict=True)
        return float(
            median(getattr(mine, field) / (getattr(theirs, field) or nan) for mine, theirs in pairs)
        )
