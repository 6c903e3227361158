"""Networks of our own in place of those of a served version."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from runtime.tower import Tower


class CountingTower:
    """Runs another network; keeps how many examples each run had, and in which threads."""

    def __init__(self, network: Tower) -> None:
        self._network = network
        self.examples: list[int] = []
        self.threads: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        self.examples.append(len(next(iter(inputs.values()))))
        self.threads.add(threading.get_ident())
        return self._network.run(inputs)


class StepClock:
    """The clock by which recommendations measure their steps: it also counts the time that slow
    steps say they take, so that neither a test nor a deadline of hours waits for them.
    """

    def __init__(self) -> None:
        self._added_s = 0.0

    def perf_counter(self) -> float:
        return time.perf_counter() + self._added_s

    def add(self, seconds: float) -> None:
        self._added_s += seconds


class SlowTower(CountingTower):
    """Says that it takes 100 seconds for each example."""

    def __init__(self, network: Tower, clock: StepClock) -> None:
        super().__init__(network)
        self._clock = clock

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        self._clock.add(100.0 * len(next(iter(inputs.values()))))
        return super().run(inputs)
