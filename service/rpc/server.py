"""The gRPC door: server, health and reflection."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from service.engine.desk import Desk
from service.rpc.servicer import SERVICE, handlers_of

OVERSIZE_FACTOR = 4
"""gRPC's own limit on a message lies this far above ours, so that ours is told with its details. Beyond it, gRPC
refuses without reading, with the same status and a sentence of its own."""


class _Health(health.aio.HealthServicer):  # type: ignore[misc]
    """gRPC's own, whose watches can be ended: one watcher would hold a drain up for all of its time."""

    def __init__(self) -> None:
        super().__init__()
        self._watches: set[asyncio.Future[None]] = set()

    async def Watch(self, request: Any, context: Any) -> None:  # noqa: N802 - gRPC's name
        """Tells every change until the caller leaves, or `end_watches`."""
        watch = asyncio.ensure_future(super().Watch(request, context))
        self._watches.add(watch)
        try:
            await asyncio.wait({watch})
        finally:
            watch.cancel()
            self._watches.discard(watch)

    def end_watches(self) -> None:
        """Ends every watch."""
        for watch in self._watches:
            watch.cancel()


class RpcServer:
    """Serves a desk over gRPC, plaintext. Health begins as NOT_SERVING."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._health = _Health()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: grpc.aio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._serving = False

    async def start(self, host: str, port: int) -> int:
        """Begins to listen.

        Args:
          host: an address of this machine.
          port: 0 for any free one.

        Returns:
          The bound port.

        Raises:
          OSError: the address cannot be bound.
        """
        self._loop = asyncio.get_running_loop()
        server = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", OVERSIZE_FACTOR * self._desk.settings.body_bytes_max),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),  # a port that is taken is an error, not half of the calls
            )
        )
        server.add_generic_rpc_handlers((handlers_of(self._desk),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        await self._tell_health()
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            bound = server.add_insecure_port(address)
        except RuntimeError as problem:
            raise OSError(f"gRPC cannot listen on {address}: is another service running there?") from problem
        await server.start()
        self._server = server
        return int(bound)

    def set_serving(self, serving: bool) -> None:
        """Tells health checks whether callers should be sent here. Any thread may call it, also before `start`."""
        self._serving = serving
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._schedule)

    async def stop(self, grace_s: float) -> None:
        """Takes no new calls and waits for those in flight.

        Args:
          grace_s: seconds; calls still running then are cancelled.
        """
        await self._health.enter_graceful_shutdown()
        self._health.end_watches()
        if self._server is not None:
            await self._server.stop(grace_s)

    def _schedule(self) -> None:
        task = asyncio.ensure_future(self._tell_health())
        self._tasks.add(task)  # the loop itself keeps only a weak reference
        task.add_done_callback(self._tasks.discard)

    async def _tell_health(self) -> None:
        kinds = health_pb2.HealthCheckResponse
        status = kinds.SERVING if self._serving else kinds.NOT_SERVING
        for name in ("", SERVICE):
            await self._health.set(name, status)
