"""What both doors are given: one engine, the settings, the metrics, and whether to send callers here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from service.engine.engine import Engine
from service.metrics import Metrics
from service.security.guards import OPEN, Guards
from service.settings import ServiceSettings


@dataclass(frozen=True)
class Desk:
    """Everything a door needs. Doors translate; the engine decides.

    Attributes:
      engine: answers every call; raises only `service.errors.ServiceError`.
      settings: the limits that a door enforces itself (`body_bytes_max`) and what it tells in its documents.
      metrics: doors report `metrics.answered(door, call, code, seconds)` once per answer, failed ones included, and
        may report the phases decode and encode.
      problem: why callers should not be sent here; empty: they should.
      liveness: whether the process should be left running.
      guards: what a door asks of whoever comes.
    """

    engine: Engine
    settings: ServiceSettings
    metrics: Metrics
    problem: Callable[[], str]
    liveness: Callable[[], bool]
    guards: Guards = OPEN
