"""The facts that an issue about a running service needs. Secrets are in files that settings name,
and this module reads none of these files.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from bundle import native
from service.admin.status import WorkerStatus
from service.config import ServiceSettings
from service.observability.derived_metrics import DERIVED
from service.observability.logging import latest_problems
from service.resources import usable_cores


def report(
    settings: ServiceSettings,
    status: dict[str, Any],
    workers: Iterable[WorkerStatus],
    metrics: bytes,
) -> dict[str, Any]:
    """Returns versions, the machine, the settings, the status, the quality of responses, and the
    newest problem of each kind in every process.

    Args:
      settings: The settings of the service.
      status: The status of the service.
      workers: The statuses of the workers.
      metrics: The text of `/metrics` for all workers; empty: it is not known.
    """
    problems = {worker.pid: worker.problems for worker in workers}
    # The worker that responds may not have reported to the coordinator yet.
    problems.setdefault(os.getpid(), tuple(latest_problems()))
    simd_extensions = np.show_config(mode="dicts").get("SIMD Extensions", {})
    packages = sorted(metadata.distributions(), key=lambda package: package.name)
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": {"cores": usable_cores(), **simd_extensions},
        "row_reads": native.MISSING or "compiled",
        "packages": {package.name: package.version for package in packages},
        "settings": settings.model_dump(mode="json"),
        "status": status,
        "quality": _quality(metrics),
        "problems": sorted(
            (line for lines in problems.values() for line in lines),
            key=lambda line: str(line["time"]),
        ),
    }


def _quality(metrics: bytes) -> list[dict[str, Any]]:
    """Returns the live recall and the drift of scores over all workers, where they are known."""
    return [
        {"metric": sample.name, **sample.labels, "value": sample.value}
        for family in text_string_to_metric_families(metrics.decode())
        if family.name.removeprefix("rowcast_") in DERIVED
        for sample in family.samples
    ]
