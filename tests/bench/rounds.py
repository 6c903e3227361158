"""Contestants measured in turns: each has its block of load in every round, the others stopped meanwhile.

The machine is noisy and the generator may share its cores, so only ratios taken in one run mean anything; a figure is
the median of its rounds, but for the far tail, which needs the answers of all rounds together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from tests.bench.load import ANSWERED, Answers, Floats, Load
from tests.bench.services import Program

CALLERS = (1, 8, 32)
SHARES = (0.5, 0.7, 0.9)
"""Of capacity: the rates of the open loop."""
WARM_UP_S = 0.3
SETTLE_S = 0.5
"""Before its blocks of a round each answers for so long off the record: it was stopped, and its timers are due."""

Key = tuple[str, str]
"""Contestant and block: `closed 8`, `open 0.7`, or a name of the caller's."""


@dataclass(frozen=True)
class Contestant:
    """A way to ask a program."""

    name: str
    program: Program
    load: Load


@dataclass(frozen=True)
class Block:
    """What one contestant did in one kind of block.

    Attributes:
      requests_per_s, p50_ms, p99_ms, cpu_ms, generator_ms: medians of the rounds; the last two a request, of CPU.
      p999_ms: over the answers of all rounds.
      failed: share of the requests that were refused or failed, over all rounds.
      failed_p99_ms: how long that took, over all rounds; nan without any.
      lowest_per_s, highest_per_s: of the rounds.
    """

    requests_per_s: float
    p50_ms: float
    p99_ms: float
    p999_ms: float
    cpu_ms: float
    generator_ms: float
    failed: float
    failed_p99_ms: float
    lowest_per_s: float
    highest_per_s: float


class Rounds:
    """Blocks of load, as they are measured."""

    def __init__(self, seconds: float) -> None:
        """Measures blocks of `seconds` seconds each."""
        self.seconds = seconds
        self._seen: dict[Key, list[tuple[Answers, float]]] = defaultdict(list)

    def turn(self, contestant: Contestant, block: str, run: Callable[[Load], Answers]) -> Answers:
        """Lets a contestant run for one block, keeps and returns what it did."""
        program = contestant.program
        program.go_on()
        before = program.cpu_s()
        answers = run(contestant.load)
        cpu_s = program.cpu_s() - before
        program.pause()
        self._seen[contestant.name, block].append((answers, cpu_s))
        return answers

    def warm_up(self, contestants: Iterable[Contestant]) -> dict[str, str]:
        """Has each answer for a moment, off the record, and stops it.

        Returns:
          Of those that refused callers who wait for their answers: what came instead, by name.
        """
        problems = {}
        for each in contestants:
            each.program.go_on()
            for callers in (1, max(CALLERS)):
                answers = each.load.closed(callers, min(WARM_UP_S, self.seconds))
                if answers.failed:
                    statuses = sorted(set(answers.status.tolist()))
                    problems[each.name] = f"{answers.failed} of {len(answers.status)} requests failed: {statuses}"
            each.program.pause()
        return problems

    def _settle(self, contestant: Contestant) -> None:
        contestant.program.go_on()
        contestant.load.closed(max(CALLERS), min(SETTLE_S, self.seconds))
        contestant.program.pause()

    def closed(self, contestants: Sequence[Contestant], rounds: int, callers: Sequence[int] = CALLERS) -> None:
        """Measures each at each number of callers, each of whom waits for its answer."""
        for _ in range(rounds):
            for each in contestants:
                self._settle(each)
                for number in callers:
                    self.turn(each, f"closed {number}", lambda load, number=number: load.closed(number, self.seconds))  # type: ignore[misc]

    def opened(self, rates: Mapping[str, Mapping[str, float]], contestants: Sequence[Contestant], rounds: int) -> None:
        """Measures each at given rates.

        Args:
          rates: requests a second, by contestant and block.
          contestants: those of whom `rates` tells take part.
          rounds: how often.
        """
        for seed in range(rounds):
            for each in contestants:
                if each.name in rates:
                    self._settle(each)
                for block, rate in rates.get(each.name, {}).items():
                    self.turn(
                        each,
                        block,
                        lambda load, rate=rate, seed=seed: load.open(rate, self.seconds, seed),  # type: ignore[misc]
                    )

    def capacity(self, name: str) -> float:
        """Returns the best median of requests a second over the closed blocks."""
        found = [
            self.block(*key).requests_per_s for key in self._seen if key[0] == name and key[1].startswith("closed")
        ]
        return max(found)

    def shares(self, contestants: Iterable[Contestant]) -> dict[str, dict[str, float]]:
        """Returns rates of the open loop by contestant: shares of its own capacity."""
        return {
            each.name: {f"open {share}": share * self.capacity(each.name) for share in SHARES} for each in contestants
        }

    def block(self, name: str, block: str) -> Block:
        """Returns what a contestant did in one kind of block."""
        turns = self._seen[name, block]
        rates = [answers.requests_per_s for answers, _ in turns]
        latency = np.concatenate([answers.latency_s[answers.status == ANSWERED] for answers, _ in turns])
        refused = np.concatenate([answers.latency_s[answers.status != ANSWERED] for answers, _ in turns])
        return Block(
            median(rates),
            median(answers.percentile_ms(50) for answers, _ in turns),
            median(answers.percentile_ms(99) for answers, _ in turns),
            _percentile_ms(latency, 99.9),
            median(cpu_s / max(1, answers.answered) * 1e3 for answers, cpu_s in turns),
            median(answers.generator_s / max(1, len(answers.status)) * 1e3 for answers, _ in turns),
            len(refused) / (len(latency) + len(refused)),
            _percentile_ms(refused, 99),
            min(rates),
            max(rates),
        )

    def blocks(self) -> dict[str, dict[str, Block]]:
        """Returns all blocks by contestant."""
        found: dict[str, dict[str, Block]] = defaultdict(dict)
        for name, block in self._seen:
            found[name][block] = self.block(name, block)
        return dict(found)


def _percentile_ms(latency_s: Floats, percent: float) -> float:
    return float(np.percentile(latency_s, percent)) * 1e3 if len(latency_s) else float("nan")
