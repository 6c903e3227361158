"""A service without doors: switch, loader, watcher and engine as `service/process.py` wires them, driven by tests."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bundle.features import Column
from runtime.towers import Tensor, Tower
from service.engine import ranking
from service.engine.engine import Engine
from service.engine.occupancy import Occupancy
from service.engine.requests import Call, Retrieval, Target
from service.generations.loader import Loader
from service.generations.policy import Policy
from service.generations.state_file import NAME, StateFile
from service.generations.switch import Switch
from service.generations.watcher import Watcher
from service.metrics import Metrics
from service.settings import ServiceSettings

Answer = TypeVar("Answer")
CALL = Call("test-request")
WORKERS = 2


class Running:
    """Everything of a service but its doors. The root is looked at when a test says `scan`."""

    def __init__(self, root: Path, occupancy: Occupancy | None = None, **settings: Any) -> None:
        self.settings = ServiceSettings(root=root, **settings)
        self.metrics = Metrics()
        self.switch = Switch()
        self.engine = Engine(self.switch, self.settings, self.metrics, WORKERS, occupancy)
        precision, verify, limit = self.settings.precision, self.settings.verify, self.settings.load_bytes_max
        self.loader = Loader(root, precision, verify, WORKERS, limit, self.engine.warm_up)
        self.state = StateFile(self.settings.state_file or root / NAME)
        self.watcher = Watcher(
            root,
            self.loader,
            self.switch,
            self.metrics,
            poll_s=1,
            verify_bytes_per_s=1 << 40,
            policy=Policy(self.settings.versions_latest, self.settings.keep_previous),
            state=self.state,
        )
        self.watcher.scan()

    def scan(self) -> None:
        self.watcher.scan()

    def ask(self, answer: Coroutine[Any, Any, Answer]) -> Answer:
        return asyncio.run(answer)

    def states(self, model: str = "movies") -> dict[int, str]:
        return {each.version: each.state for each in self.switch.models().get(model, ())}

    def problem(self, version: int, model: str = "movies") -> str:
        return next(each.problem for each in self.switch.models()[model] if each.version == version)

    def value(self, metric: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(metric, labels) or 0.0

    def with_network(self, tower: str, network: Tower, model: str = "movies", part: int = 0) -> None:
        """Replaces one network of the current generation, e.g. by one that waits or fails."""
        current = self.switch.current(model)
        assert current is not None
        assert isinstance(current.towers, dict)
        parts = list(current.towers[tower].parts)
        parts[part] = replace(parts[part], network=network)
        current.towers[tower] = replace(current.towers[tower], parts=tuple(parts))
        ranking._KNOWN.pop(current, None)  # what was found out of the tower that it was

    def close(self) -> None:
        self.engine.close()
        self.switch.close()


class WaitingTower:
    """Runs another tower, but only once it is let go; tells when it was entered."""

    def __init__(self, network: Tower) -> None:
        self._network = network
        self.entered, self.let_go = threading.Event(), threading.Event()

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return self._network.inputs

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        return self._network.outputs

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        self.entered.set()
        assert self.let_go.wait(20), "the test never let the tower go"
        return self._network.run(inputs)

    def run_in_order(self, values: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        return self._network.run_in_order(values)

    def buffers(self, n: int) -> Mapping[str, NDArray[Any]]:
        return self._network.buffers(n)

    def prepare(self) -> None:
        self._network.prepare()

    def hand_on(self) -> None:
        self._network.hand_on()


class FailingTower(WaitingTower):
    """Fails as no tower should."""

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        raise RuntimeError("secret of the tower")


def column(*values: Any, offsets: Sequence[int] | None = None, weights: Sequence[float] | None = None) -> Column:
    """A column of int64, str or float32 values."""
    kind = object if isinstance(values[0] if values else 0, str) else None
    array = np.array(values, kind) if values else np.empty(0, np.int64)
    return Column(
        array.astype(np.float32) if array.dtype == np.float64 else array,
        None if offsets is None else np.array(offsets, np.int64),
        None if weights is None else np.array(weights, np.float32),
    )


def version_of(service: Running) -> int:
    """The version that answers."""
    return service.ask(
        service.engine.retrieve(Retrieval(Target("movies"), vectors=np.ones(8, np.float32)), CALL)
    ).version


def flip(file: Path, at: int = 100) -> None:
    """Changes one bit."""
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


def touch(manifest: Path) -> None:
    """Moves a file's time of change on."""
    found = manifest.stat()
    os.utime(manifest, ns=(found.st_atime_ns, found.st_mtime_ns + 1))
