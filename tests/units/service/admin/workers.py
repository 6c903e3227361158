"""Workers with empty models: they follow the desired state and write their status as
real ones do.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from service.admin.status import WorkerStatus
from service.config import ServiceSettings
from service.coordinator import Coordinator
from service.observability.metrics import Metrics
from service.versions.lifecycle import VersionManager
from service.versions.loader import LoadRejected
from service.versions.poller import Poller
from service.versions.version import ModelVersion, stamp_of


def publish(root: Path, version: int, model: str = "movies") -> None:
    """Makes a version that is complete as far as its directory shows."""
    (root / model / str(version)).mkdir(parents=True)
    (root / model / str(version) / "manifest.json").touch()


@dataclass
class _EmptyVersions:
    """Loads nothing of a version, or fails as a test wants."""

    root: Path
    failing: dict[int, str] = field(default_factory=dict)

    def load(self, model: str, version: int) -> ModelVersion:
        if version in self.failing:
            raise LoadRejected(self.failing[version])
        directory = self.root / model / str(version)
        nothing = dict[str, Any]()
        empty: Any = None
        parts = empty, nothing, empty, nothing, nothing, nothing, nothing
        return ModelVersion(
            model,
            version,
            directory,
            *parts,
            lambda: None,
            1 << 20,
            stamp_of(directory / "manifest.json"),
        )


class Worker:
    """One worker. A thread arranges what is loaded as soon as that is desired; a test calls `scan`
    for loads.
    """

    def __init__(
        self, settings: ServiceSettings, coordinator: Coordinator, pid: int | None = None
    ) -> None:
        self._coordinator = coordinator
        self._pid = pid or os.getpid()
        self._loader = _EmptyVersions(settings.root)
        self._manager = VersionManager()
        loader: Any = self._loader
        self._poller = Poller(settings, loader, self._manager, Metrics(), coordinator, self._pid)
        self.failing = self._loader.failing
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self.scan()
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def scan(self) -> None:
        """Loads what is desired."""
        with self._lock:
            self._poller.scan()
            self._report()

    def _follow(self) -> None:
        while not self._stopping.wait(0.005):
            with self._lock:
                self._poller.follow()
                self._report()

    def _report(self) -> None:
        status = replace(WorkerStatus.of(self._manager, self._poller, 1 << 20), pid=self._pid)
        report = self._poller.report("", True, status.to_json())
        self._coordinator.report(self._pid, report)

    def states(self) -> dict[int, str]:
        return {state.version: state.state for state in self._manager.models()["movies"]}

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._manager.close()
