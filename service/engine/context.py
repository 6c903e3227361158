"""What accompanies a request from its transport to its response: who sent it, its deadline and its
phases.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from service.errors import Cancelled, DeadlineExceeded
from service.security.principal import Principal


@dataclass(slots=True, eq=False)
class RequestContext:
    """One request on its way.

    Attributes:
      call: The name of the call, one of `metrics.CALLS`.
      deadline: The deadline, on the clock of `time.monotonic()`.
      principal: The authenticated client; None: authentication is off.
      model: The model as the client named it, or the one that serves the request; empty: nothing
        was read yet.
      version: The version of the model that serves the request; 0: none was chosen yet.
      disconnected: Returns once the client has hung up; None: the transport cancels the request
        itself.
      phases: The seconds of each phase, in the order in which they began.
      cancelled: Whether nobody waits for the response any more.
      trace_parent: The header `traceparent` of the request.
      held_bytes: The bytes of the request and of its response that count in the byte budget.
      received_at: The time when the last byte of the request had arrived, on the clock of
        `time.monotonic()`; 0: unknown.
      has_turn: Whether the request has the turn to be decompressed and decoded.
    """

    call: str
    request_id: str
    deadline: float
    principal: Principal | None = None
    model: str = ""
    disconnected: Callable[[], Awaitable[object]] | None = None
    phases: dict[str, float] = field(default_factory=dict)
    cancelled: bool = False
    version: int = 0
    trace_parent: str = ""
    held_bytes: int = 0
    received_at: float = 0.0
    has_turn: bool = False

    def check(self) -> None:
        """Raises Cancelled or DeadlineExceeded if the request is not worth computing any more."""
        if self.cancelled:
            raise Cancelled("the client has disconnected")
        if time.monotonic() >= self.deadline:
            raise DeadlineExceeded("the deadline of the request has passed")
