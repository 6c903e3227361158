"""Writes to one connection: each at once, or those of one turn of the loop in one piece."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Writer:
    """Every byte of a connection goes through here, so that none overtakes another.

    Attributes:
      write: writes, or keeps what is held.
    """

    __slots__ = ("_held", "_transport", "write")

    def __init__(self, transport: asyncio.Transport) -> None:
        """Begins with nothing held."""
        self._transport = transport
        self._held: list[bytes] | None = None
        self.write: Callable[[bytes], None] = transport.write

    def hold(self) -> None:
        """Keeps what is written from now on until the loop's next turn: each write to the kernel is dear."""
        if self._held is None:
            self._held = []
            self.write = self._held.append
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Writes what is held."""
        held, self._held = self._held, None
        self.write = self._transport.write
        if held and not self._transport.is_closing():
            self.write(b"".join(held))
