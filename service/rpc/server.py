"""The gRPC door: an address, the service's methods, health and reflection."""

from __future__ import annotations

import asyncio
import socket

from service.engine.desk import Desk
from service.rpc import health, reflection
from service.rpc.servicer import SERVICE, methods_of, token_check, unknown_method
from service.rpc.transport.limits import Limits
from service.rpc.transport.listener import Listener
from service.rpc.transport.room import Room
from service.security.certificates import GRPC
from service.sockets import connections_max_of


class RpcServer:
    """Serves a desk over gRPC. Health begins as NOT_SERVING."""

    def __init__(self, desk: Desk) -> None:
        settings = desk.settings
        self._health = health.Health((SERVICE,))
        methods = methods_of(desk) | self._health.methods()
        methods |= reflection.methods((SERVICE, health.SERVICE, reflection.SERVICE), token_check(desk))
        limits = Limits(
            streams_max=settings.streams_max,
            connections_max=connections_max_of(settings),
            message_bytes_max=settings.body_bytes_max,
            intake_bytes_max=settings.intake_bytes_max,
            receive_s=settings.timeout_s,
            idle_s=settings.idle_s,
            age_s=settings.connection_age_s,
            unread_bytes_max=settings.unread_bytes_max,
        )
        self._certificates = desk.guards.certificates
        self._take = desk.take_grpc
        room = Room(methods, limits, settings.retry_after_s, unknown_method(desk))
        desk.metrics.connections.labels("grpc").set_function(lambda: len(room.connections))
        self._listener = Listener(room)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._serving = False

    async def start(self, host: str, port: int, listening: socket.socket | None = None) -> int:
        """Begins to listen.

        Args:
          host: an address of this machine.
          port: 0 for any free one.
          listening: a socket that was bound already, instead of these two.

        Returns:
          The bound port.

        Raises:
          OSError: the address cannot be bound.
        """
        self._loop = asyncio.get_running_loop()
        self._tell_health()
        tls = None if self._certificates is None else self._certificates.context(GRPC)
        return await self._listener.start(host, port, listening, tls, self._take)

    def set_serving(self, serving: bool) -> None:
        """Tells health checks whether callers should be sent here. Any thread may call it, also before `start`."""
        self._serving = serving
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._tell_health)

    def leave(self) -> None:
        """Asks callers to go elsewhere with their next calls; those that come nonetheless are answered."""
        self._listener.leave()

    async def stop(self, grace_s: float) -> None:
        """Takes no new calls and waits for those in flight.

        Args:
          grace_s: seconds; calls still running then are cancelled.
        """
        self._health.end_watches()
        await self._listener.stop(grace_s)

    def _tell_health(self) -> None:
        self._health.set_serving(self._serving)
