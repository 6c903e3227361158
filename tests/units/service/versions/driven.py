"""Manager, loader and poller over a root; the root is scanned when a test says `scan`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from service.config import ServiceSettings
from service.coordinator import Coordinator
from service.observability.metrics import Metrics
from service.versions.lifecycle import VersionManager
from service.versions.loader import Loader
from service.versions.poller import Poller
from service.versions.state_file import StateFile
from service.versions.throttle import LoadThrottle
from service.versions.version import ModelVersion
from tests.bundles.small import SmallBundle

Write = Callable[..., SmallBundle]
WarmUp = Callable[[ModelVersion, LoadThrottle], object]
THREADS = 2


def no_warm_up(version: ModelVersion, throttle: LoadThrottle) -> None:
    """Leaves a version as it was opened."""


class Driven:
    """What serves versions, but for the engine."""

    def __init__(
        self,
        root: Path,
        warm_up: WarmUp = no_warm_up,
        coordinator: Coordinator | None = None,
        worker: int = 1,
        listens: bool = True,
        **settings: Any,
    ) -> None:
        self.settings = ServiceSettings(
            root=root, scrub_bytes_per_s=1 << 40, threads=THREADS, **settings
        )
        self.metrics = Metrics()
        self.manager = VersionManager()
        self.warm_up = warm_up
        self.loader = Loader(self.settings, THREADS, self._warm_up)
        self.state = StateFile.of(self.settings)
        self.coordinator = coordinator or Coordinator()
        self.worker = worker
        self.listens = listens
        self.poller = Poller(
            self.settings, self.loader, self.manager, self.metrics, self.coordinator, worker
        )
        self.scan()

    def _warm_up(self, version: ModelVersion, throttle: LoadThrottle) -> None:
        self.warm_up(version, throttle)

    def scan(self) -> None:
        self.poller.scan()
        self.report()

    def report(self) -> None:
        """Reports to the other workers what this one serves."""
        report = self.poller.report("", self.listens)
        self.coordinator.report(self.worker, report)

    def want(self, **fields: Any) -> None:
        """Changes what is wanted of the model and follows it, without a scan."""
        self.state.update(
            lambda desired: desired.with_model("movies", desired.of("movies").changed(**fields))
        )
        self.poller.follow()

    def serving(self, version: int | None = None, label: str = "") -> int:
        """Returns the version that serves a request."""
        with self.manager.acquire("movies", version, label) as leased:
            return leased.version

    def states(self, model: str = "movies") -> dict[int, str]:
        return {state.version: state.state for state in self.manager.models().get(model, ())}

    def problem(self, version: int) -> str:
        return next(
            state.problem for state in self.manager.models()["movies"] if state.version == version
        )

    def value(self, metric: str, **labels: str) -> float:
        families = text_string_to_metric_families(self.metrics.render().decode())
        samples = (sample for family in families for sample in family.samples)
        return sum(
            sample.value for sample in samples if (sample.name, sample.labels) == (metric, labels)
        )


def touch(manifest: Path) -> None:
    """Moves a file's modification time on."""
    status = manifest.stat()
    os.utime(manifest, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
