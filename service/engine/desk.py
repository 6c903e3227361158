"""What both doors are given: one engine, the settings, the metrics, and whether to send callers here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from service.engine.descriptions import ModelState
from service.engine.engine import Engine
from service.engine.requests import Target
from service.metrics import Metrics, beside_calls
from service.security.guards import OPEN, Guards
from service.settings import ServiceSettings
from service.sockets import Take, take_all


class Crew(Protocol):
    """The processes of a service that has several, speaking as one."""

    async def metrics_page(self) -> bytes:
        """Returns the page of `/metrics`."""

    async def models(self) -> tuple[ModelState, ...]:
        """Returns every model and its versions."""


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
      crew: of which this process is one; None: it is the only one.
      take_http, take_grpc: how connections are taken from the doors' sockets.
      record: keeps some answered calls: told model, call, whether the body is protobuf, and the body; None: none.
    """

    engine: Engine
    settings: ServiceSettings
    metrics: Metrics
    problem: Callable[[], str]
    liveness: Callable[[], bool]
    guards: Guards = OPEN
    crew: Crew | None = None
    take_http: Take = take_all
    take_grpc: Take = take_all
    record: Callable[[str, str, bool, bytes], None] | None = None

    def answered(self, call: str, target: Target, model: str, protobuf: bool, body: bytes) -> None:
        """Offers an answered call to who records, unless it named a version: another one would be asked in vain."""
        if self.record is not None and target.version is None and not target.label:
            self.record(model, call, protobuf, body)

    async def metrics_page(self) -> bytes:
        """Returns the page of `/metrics` of the whole service."""
        if self.crew is not None:
            return await self.crew.metrics_page()
        return await beside_calls(self.metrics.render)

    async def models(self) -> tuple[ModelState, ...]:
        """Returns every model and its versions, of the whole service."""
        return self.engine.models() if self.crew is None else await self.crew.models()
