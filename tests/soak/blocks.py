"""Blocks of load in threes: nothing happens in the first and the last, what is to be judged happens in between.

Both sides of a comparison so have the same moments in their midst: what a machine does to a service that is busy drifts
by the second. The blocks in which nothing happens are compared with each other, too: what these differ by is noise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import psutil
from numpy.typing import NDArray

from tests.bench.load import ANSWERED, Load

PERCENTS = (50, 99, 99.9)
FIGURES = ("p50", "p99", "p99.9", "p99 of the median round")
DRAWS = 100
"""Of as many rounds as there are, each as often as it comes."""
NINE_OF_TEN = (5, 95)

SHARE = 0.7
"""Of what the service answers at most."""
CALLERS = 8

REST_S = 0.5
"""So long is a block made longer until what was begun in it is over."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Block:
    """What one block of load saw.

    Attributes:
      latency_s: [answered] float64, of each call that was answered.
      cpu_s: of the service.
      others_s: of other programs, and of the machine itself, on the cores that the service may use.
    """

    latency_s: Floats
    asked: int
    elapsed_s: float
    cpu_s: float
    others_s: float


@dataclass(frozen=True)
class Round:
    """Three blocks at one rate: without, with, and without once more.

    Attributes:
      times: that it was done.
    """

    rate_per_s: float
    times: int
    before: Block
    meanwhile: Block
    after: Block


@dataclass(frozen=True)
class Pressure:
    """A load on a service, in rounds.

    Attributes:
      service: its first process.
      block_s: of the block in which something happens; the others are half as long.
      every_s: from one thing that is done to the next, at least.
      beside: what is done in the others, of no effect on the service.
    """

    load: Load
    service: int
    block_s: float
    every_s: float
    beside: Callable[[], None]

    def round(self, act: Callable[[], None], seed: int, go_on: Callable[[], bool] = lambda: True) -> Round:
        """Presses once while nothing happens, while `act` is called again and again, and once more without."""
        # Anew each time: others use the machine, too.
        rate_per_s = SHARE * self.load.closed(CALLERS, self.block_s / 2).requests_per_s
        half_s, blocks, times = self.block_s / 2, list[Block](), list[int]()
        with ThreadPoolExecutor(1) as acts:
            for seconds, what in ((half_s, self.beside), (self.block_s, act), (half_s, self.beside)):
                acting = acts.submit(self._again_and_again, what, seconds, go_on)
                pieces = [self._press(rate_per_s, seconds, seed)]
                while not acting.done():  # what was begun is part of it
                    pieces.append(self._press(rate_per_s, REST_S, seed + len(pieces)))
                times.append(acting.result())
                blocks.append(_joined(pieces))
        return Round(rate_per_s, times[1], *blocks)

    def _again_and_again(self, what: Callable[[], None], seconds: float, go_on: Callable[[], bool]) -> int:
        end_s, times = time.monotonic() + seconds, 0
        while time.monotonic() < end_s and go_on():
            due_s = time.monotonic() + min(self.every_s, seconds / 2)
            what()
            times += 1
            time.sleep(max(0, due_s - time.monotonic()))
        return times

    def _press(self, rate_per_s: float, seconds: float, seed: int) -> Block:
        before_s, busy_s = cpu_s(self.service), busy_cores_s(self.service)
        answers = self.load.open(rate_per_s, seconds, seed)
        spent_s = cpu_s(self.service) - before_s
        others_s = busy_cores_s(self.service) - busy_s - spent_s
        answered = answers.latency_s[answers.status == ANSWERED]
        return Block(answered, len(answers.status), answers.elapsed_s, spent_s, others_s)


def _joined(pieces: Sequence[Block]) -> Block:
    latencies = np.concatenate([each.latency_s for each in pieces])
    asked = sum(each.asked for each in pieces)
    return Block(latencies, asked, *np.sum([(each.elapsed_s, each.cpu_s, each.others_s) for each in pieces], axis=0))


def cpu_s(service: int) -> float:
    """Returns the CPU that a process and its children took so far, seconds."""
    parent = psutil.Process(service)
    return float(sum(sum(each.cpu_times()[:2]) for each in (parent, *parent.children())))


def busy_cores_s(service: int) -> float:
    """Returns how long the cores that a process may use were busy so far, seconds."""
    times = psutil.cpu_times(percpu=True)
    cores = psutil.Process(service).cpu_affinity() or range(len(times))
    return float(sum(sum(times[core]) - times[core].idle - times[core].iowait for core in cores))


def asked_and_failed(rounds: Sequence[Round]) -> tuple[int, int]:
    """Counts the calls of some rounds, and those that were not answered."""
    blocks = [block for each in rounds for block in _blocks(each)]
    asked = sum(block.asked for block in blocks)
    return asked, asked - sum(len(block.latency_s) for block in blocks)


def _blocks(round_: Round) -> tuple[Block, Block, Block]:
    return round_.before, round_.meanwhile, round_.after


def compared(rounds: Sequence[Round], what: str) -> Iterator[str]:
    """Tells latencies without and with what was done in the middle blocks, and the CPU of both.

    Each ratio is followed by what the halves without it give against each other, which is noise; in brackets between
    what nine of ten draws of these rounds lie. Told of all rounds, and of those in which other programs took least.
    """
    others = [max(each.others_s / each.elapsed_s for each in _blocks(round_)) for round_ in rounds]
    quiet = [each for each, cores in zip(rounds, others, strict=True) if cores <= np.median(others)]
    yield from _lines(rounds, what)
    yield f"of these the half in which others had at most {np.median(others):.2f} cores of the service's:"
    yield from _lines(quiet, what)
    times = [[(each.cpu_s, each.others_s, each.elapsed_s) for each in _blocks(round_)] for round_ in rounds]
    sums = np.sum(times, axis=0)  # [blocks, 3]
    for name, (before, meanwhile, after) in zip(("service", "others"), (sums[:, :2] / sums[:, 2:]).T, strict=True):
        yield f"cores of the {name}: {before:.3f} and {after:.3f} without {what}, {meanwhile:.3f} with"
    (before_s, _, before), (spent_s, _, elapsed), (after_s, _, after) = sums
    more_s = spent_s - elapsed * (before_s + after_s) / (before + after)
    yield f"CPU of the service beyond its calls: {more_s / sum(each.times for each in rounds) * 1e3:.0f} ms each time"


def _lines(rounds: Sequence[Round], what: str) -> Iterator[str]:
    found = _figures(rounds)
    draws = np.random.default_rng(0).integers(len(rounds), size=(DRAWS, len(rounds)))
    drawn = np.array([_figures([rounds[each] for each in draw]) for draw in draws])
    ranges = [np.percentile(drawn[:, a] / drawn[:, b], NINE_OF_TEN, axis=0) for a, b in ((1, 0), (2, 3))]
    for at, name in enumerate(FIGURES):
        without, meanwhile, one, other = found[:, at] * 1e3
        effect, noise = (" to ".join(f"{each:.2f}" for each in one_range[:, at]) for one_range in ranges)
        yield (
            f"{name}: {without:.2f} ms without {what}, {meanwhile:.2f} ms with: x {meanwhile / without:.2f} "
            f"({effect}); noise x {one / other:.2f} ({noise})"
        )


def _figures(rounds: Sequence[Round]) -> Floats:
    """Returns seconds, [4, figures] float64: without, with, one half of those without, the other half."""
    # What comes right after the rate was measured is on the same side in every second round only.
    halves = [(each.before, each.after) if at % 2 else (each.after, each.before) for at, each in enumerate(rounds)]
    sides = [
        [np.concatenate((one.latency_s, other.latency_s)) for one, other in halves],
        [each.meanwhile.latency_s for each in rounds],
        [one.latency_s for one, _ in halves],
        [other.latency_s for _, other in halves],
    ]
    return np.array(
        [
            [*np.percentile(np.concatenate(side), PERCENTS), np.median([np.percentile(each, 99) for each in side])]
            for side in sides
        ]
    )
