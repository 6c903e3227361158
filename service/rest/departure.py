"""A caller who sends nothing more: it has left, or has closed only its own side and waits for its answers.

The network tells these apart by what becomes of bytes that are sent: whoever has left has them refused. So what every
response begins with is sent ahead, byte by byte, and the call goes on until one is refused.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

_BEGINNING = b"HTTP/1.1 "
_LOOK_S = 0.02
"""Most answers are out before the first look, and cost nothing more. Each next one comes after twice the time."""
_CLOSED = b"\x07"
"""What a refusal leaves of a connection. Source: Linux, `include/net/tcp_states.h` (TCP_CLOSE)."""


class Departure:
    """What one connection knows of it.

    Attributes:
      told: whether the caller sends nothing more.
    """

    def __init__(self) -> None:
        """Begins with a caller who may send more."""
        self.told = False
        self._ahead = 0
        self._next: asyncio.TimerHandle | None = None

    def begin(self, transport: asyncio.Transport, silent: Callable[[], bool]) -> None:
        """Looks from now on whether the caller has left, and then ends the connection.

        Args:
          transport: to the caller.
          silent: whether a response is next of which nothing is sent.
        """
        if not self.told:
            self.told = True
            self._look_after(_LOOK_S, transport, silent)

    def end(self) -> None:
        """Looks no more."""
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def rest_of(self, response: bytes) -> bytes:
        """Returns what is still to be sent of a response, which is then sent."""
        ahead, self._ahead = self._ahead, 0
        return response[ahead:]

    def _look_after(self, wait_s: float, transport: asyncio.Transport, silent: Callable[[], bool]) -> None:
        self._next = asyncio.get_running_loop().call_later(wait_s, self._look, wait_s, transport, silent)

    def _look(self, waited_s: float, transport: asyncio.Transport, silent: Callable[[], bool]) -> None:
        if transport.is_closing():
            return
        if transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) == _CLOSED:
            transport.abort()
            return
        if silent() and self._ahead < len(_BEGINNING):
            transport.write(_BEGINNING[self._ahead : self._ahead + 1])
            self._ahead += 1
        self._look_after(2 * waited_s, transport, silent)
