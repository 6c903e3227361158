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


class SlowTower(CountingTower):
    """Takes a tenth of a second for each example."""

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        time.sleep(0.1 * len(next(iter(inputs.values()))))
        return super().run(inputs)
