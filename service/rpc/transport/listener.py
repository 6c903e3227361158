"""What listens for connections, holds them to their times, and closes them in good order."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from typing import Any

from service.rpc.transport.connection import Connection
from service.rpc.transport.patience import PARTING_S_MAX
from service.rpc.transport.room import Room
from service.sockets import Take, Taking, listen, take_all

LOOK_S = 1.0
_GOODBYE_S = 5.0
"""For the end of a TLS connection, which takes an answer of the caller."""


class Listener:
    """One address that gRPC callers connect to."""

    def __init__(self, room: Room) -> None:
        """Takes what connections share."""
        self._room = room
        self._server: Taking | None = None
        self._looking: asyncio.Task[None] | None = None

    async def start(
        self,
        host: str,
        port: int,
        listening: socket.socket | None = None,
        tls: ssl.SSLContext | None = None,
        take: Take = take_all,
    ) -> int:
        """Begins to listen; returns the bound port.

        Args:
          host: an address of this machine.
          port: 0 for any free one.
          listening: a socket that was bound already, instead of these two.
          tls: of the connections, which then has to offer `h2` by ALPN; None: they are in plain.
          take: how connections are taken from the socket.

        Raises:
          OSError: the address cannot be bound.
        """
        if listening is None:
            listening = listen("gRPC", host, port)
        options: dict[str, Any] = {}
        if tls is not None:
            options = {
                "ssl": tls,
                "ssl_handshake_timeout": self._room.limits.preface_s,
                "ssl_shutdown_timeout": _GOODBYE_S,
            }
        held = self._room.connections
        self._server = await take(listening, lambda: Connection(self._room), lambda: len(held), **options)
        self._looking = asyncio.create_task(self._look())
        return int(listening.getsockname()[1])

    def leave(self) -> None:
        """Asks every peer to begin no more calls here."""
        for connection in list(self._room.connections):
            connection.go_away()

    async def stop(self, grace_s: float) -> None:
        """Takes no new connections and no new calls; waits for the answers to those there are.

        Args:
          grace_s: seconds; calls still computed then are cancelled.
        """
        if self._server is None or self._looking is None:
            return
        self._server.close()
        end = time.monotonic() + grace_s
        connections = self._room.connections
        self.leave()
        calm = time.monotonic() + PARTING_S_MAX
        while connections and (now := time.monotonic()) < end:
            if any(connection.has_calls for connection in connections):
                calm = now + PARTING_S_MAX
            elif now > calm:
                break
            await asyncio.sleep(0.005)
        for connection in list(connections):
            connection.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # the cancelled calls tell their callers
        for connection in list(connections):
            connection.close()
        self._looking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._looking

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            now = time.monotonic()
            for connection in list(self._room.connections):
                connection.look(now)
            self._hold_unread()

    def _hold_unread(self) -> None:
        """Leaves the peers that read least, until what the others have not read is within its limit."""
        unread = {connection: connection.unread_bytes for connection in self._room.connections}
        total = sum(unread.values())
        for connection in sorted(unread, key=lambda each: unread[each], reverse=True):
            if total <= self._room.limits.unread_bytes_max:
                return
            total -= unread[connection]
            connection.abort()
