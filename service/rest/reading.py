"""Whether a connection is read, and whether its caller reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from uvicorn.protocols.http.flow_control import FlowControl

from service.rest.crowd import Patience


class Flow(FlowControl):
    """uvicorn's, which also keeps still while requests wait in line: uvicorn reads on whenever an answer awaits."""

    held = False

    def resume_reading(self) -> None:
        """Reads on, unless requests wait in line."""
        if not self.held:
            super().resume_reading()


class ReaderWatch:
    """Looks now and then whether what was written to a connection goes out; also what is closed goes out first."""

    def __init__(self, loop: asyncio.AbstractEventLoop, patience: Patience, cut: Callable[[str], None]) -> None:
        """Takes what ends the connection of a caller who does not read, told `unread`."""
        self._loop, self._patience, self._cut = loop, patience, cut
        self._next: asyncio.TimerHandle | None = None

    def begin(self, transport: asyncio.Transport) -> None:
        """Looks at a connection as long as something is to go out."""
        size = transport.get_write_buffer_size()
        if size and self._next is None:
            self._next = self._loop.call_later(self._patience.grace_s, self._look, transport, size)

    def end(self) -> None:
        """Looks no more."""
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _look(self, transport: asyncio.Transport, before: int) -> None:
        self._next = None
        read = before - transport.get_write_buffer_size()
        if read < min(before, self._patience.bytes_per_s_min * self._patience.grace_s):
            self._cut("unread")
        else:
            self.begin(transport)
