"""What is measured: checkouts of rowcast, the workloads that each writes, and its services."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from benchmarks import requests, workload_files
from benchmarks.bare import QUERIES
from benchmarks.deltas import with_deltas
from benchmarks.services import HERE, Checkout, Service
from benchmarks.workload_files import WorkloadFiles
from benchmarks.workloads import RankingWorkload, RetrievalWorkload, write_ranking, write_retrieval


@dataclass
class Subjects:
    """Checkouts that are measured in turns.

    A checkout has one service for each precision, which is started when it is first needed. It
    stands still unless it is measured.

    Attributes:
      scratch: Directory for bundles, models and logs.
      checkouts: The first is this one.
      scale: Of the workloads.
      workers: Of each service.
    """

    scratch: Path
    checkouts: Sequence[Checkout]
    scale: float
    workers: int
    _written: dict[str, WorkloadFiles] = field(default_factory=dict)
    _services: dict[tuple[str, str], Service] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        """Directory of this checkout's bundles."""
        return self.scratch / "bundles"

    @cached_property
    def ranking(self) -> RankingWorkload:
        """Workload R."""
        return write_ranking(self.root, self.scale)

    @cached_property
    def retrieval(self) -> RetrievalWorkload:
        """Workload Q."""
        # A cost is measured, so two checkouts may choose different settings; the last decides.
        older_checkouts = [checkout for checkout in self.checkouts if checkout.directory != HERE]
        parameters = self.index(older_checkouts[-1])["parameters"] if older_checkouts else None
        work = write_retrieval(self.root, self.scale, parameters=parameters)
        np.save(work.directory.parent / QUERIES, work.vectors)
        return work

    def files(self, checkout: Checkout) -> WorkloadFiles:
        """Returns the bundles and the bodies that a checkout writes."""
        if checkout.name not in self._written:
            self._written[checkout.name] = self._write(checkout)
        return self._written[checkout.name]

    def _write(self, checkout: Checkout) -> WorkloadFiles:
        if checkout.directory == HERE:
            bodies = workload_files.bodies_of(requests, self.ranking, self.retrieval)
            whole = WorkloadFiles(self.root, bodies)
            if not checkout.deltas:
                return whole
            return with_deltas(whole, self.scratch / f"bundles-{checkout.name}", checkout.deltas)
        return checkout.write_workloads(self.scratch / f"bundles-{checkout.name}", self.scale)

    def index(self, checkout: Checkout) -> dict[str, Any]:
        """Returns the manifest entry of the index of Q, by any version of the format."""
        manifest = self.files(checkout).root / "retrieval" / "1" / "manifest.json"
        entry: dict[str, Any] = orjson.loads(manifest.read_bytes())["indexes"]["items"]
        return entry

    def service(self, checkout: Checkout, precision: str) -> Service:
        """Returns the service of a checkout, which stands still.

        Raises:
          NotStarted: It ended, or was not ready in time.
        """
        running = checkout.name, precision
        if running not in self._services:
            self._services[running] = self.start(checkout, precision, self.workers)
            self._services[running].pause()
        return self._services[running]

    def start(self, checkout: Checkout, precision: str, workers: int) -> Service:
        """Starts another service of a checkout, which the caller closes.

        Raises:
          NotStarted: It ended, or was not ready in time.
        """
        options = ["--workers", str(workers)]
        if checkout.deltas:
            # What is measured is the reading through deltas, and not what takes their place.
            options += ["--merge-bytes-per-s", "0"]
        return Service(checkout, self.files(checkout).root, self.scratch, precision, *options)

    def close(self) -> None:
        """Ends the services that stand still; `service` starts them again."""
        while self._services:
            _, service = self._services.popitem()
            service.close()
