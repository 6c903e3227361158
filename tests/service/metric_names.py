"""The names of all metrics that a service has."""

from __future__ import annotations

import re
from pathlib import Path

from service.generations.figures import GenerationFigures
from service.generations.switch import Switch
from service.metrics import Metrics
from service.workers import crew


def served() -> set[str]:
    """Every name on the page of `/metrics` that is the service's own."""
    metrics = Metrics()
    metrics.certificates(dict)
    metrics.recordings(dict)
    metrics.registry.register(GenerationFigures(Switch()))
    names = {f"{each.name}_total" if each.type == "counter" else each.name for each in metrics.registry.collect()}
    of_workers = re.findall(r'"(rowcast_worker\w+)"', Path(crew.__file__).read_text())
    return {name for name in names if name.startswith("rowcast_")} | set(of_workers) - {"rowcast_worker_restarts"}
