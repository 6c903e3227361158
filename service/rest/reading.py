"""How much of a connection is read at a time, and whether its caller reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from service.rest.crowd import Patience

_FEW, _FEW_BYTES_MAX = 4, 16 << 10
"""What holds no more requests, and is no larger, is parsed at once."""
_STEP_BYTES = 1 << 10
"""Parsed at a time of what may hold many requests: once two are there, the rest stays unparsed until they are
answered. A parsed request takes a hundred times the bytes of the smallest one."""


def step_bytes(data: bytes, body_bytes_left: int) -> int:
    """Returns how much of what came is to be parsed before a look at what that was.

    Args:
      data: all that came.
      body_bytes_left: of a body that is parsed already in part, as far as is known.
    """
    few = len(data) <= _FEW_BYTES_MAX and data.count(b"\r\n\r\n") <= _FEW  # each head ends so
    return len(data) if few else max(_STEP_BYTES, body_bytes_left)


class Cycle(Protocol):
    """A request and its response, as its connection knows it: a hot call, or uvicorn's own."""

    keep_alive: bool
    more_body: bool
    response_started: bool
    response_complete: bool


def hung_up(cycle: RequestResponseCycle) -> None:
    """Tells what answers for uvicorn that its caller is gone."""
    cycle.disconnected = not cycle.response_complete
    cycle.message_event.set()


class Flow(FlowControl):
    """uvicorn's, which also keeps still while requests wait in line: uvicorn reads on whenever an answer awaits."""

    held = False

    def resume_reading(self) -> None:
        """Reads on, unless requests wait in line."""
        if not self.held:
            super().resume_reading()


class ReaderWatch:
    """Looks now and then whether what was written to a connection goes out; also what is closed goes out first."""

    def __init__(self, loop: asyncio.AbstractEventLoop, patience: Patience) -> None:
        """Begins with nothing to look at."""
        self._loop, self._patience = loop, patience
        self._next: asyncio.TimerHandle | None = None

    def begin(self, transport: asyncio.Transport, cut: Callable[[str], None]) -> None:
        """Looks at a connection as long as something is to go out; `cut` ends that of a caller who does not read."""
        size = transport.get_write_buffer_size()
        if size and self._next is None:
            self._next = self._loop.call_later(self._patience.grace_s, self._look, transport, size, cut)

    def end(self) -> None:
        """Looks no more."""
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _look(self, transport: asyncio.Transport, before: int, cut: Callable[[str], None]) -> None:
        self._next = None
        read = before - transport.get_write_buffer_size()
        if read < min(before, self._patience.bytes_per_s_min * self._patience.grace_s):
            cut("unread")
        else:
            self.begin(transport, cut)
