"""What an issue about a running service needs. Secrets are in files that settings name, and none of
them is read.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

import numpy as np

from bundle import native
from service.admin.status import WorkerStatus
from service.config import ServiceSettings
from service.observability.logging import latest_problems
from service.resources import usable_cores


def report(
    settings: ServiceSettings, status: dict[str, Any], workers: Iterable[WorkerStatus]
) -> dict[str, Any]:
    """Returns versions, the machine, the settings, the status, and the newest problem of each kind
    in every process.
    """
    problems = {worker.pid: worker.problems for worker in workers}
    problems.setdefault(os.getpid(), tuple(latest_problems()))
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": {"cores": usable_cores(), **np.show_config(mode="dicts").get("SIMD Extensions", {})},
        "row_reads": native.MISSING or "compiled",
        "packages": {
            each.name: each.version
            for each in sorted(metadata.distributions(), key=lambda each: each.name)
        },
        "settings": settings.model_dump(mode="json"),
        "status": status,
        "problems": sorted(
            (line for lines in problems.values() for line in lines),
            key=lambda line: str(line["time"]),
        ),
    }
