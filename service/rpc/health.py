"""gRPC's health protocol: whether callers should be sent here, asked once or watched.

Source: https://github.com/grpc/grpc/blob/master/doc/health-checking.md
"""

from __future__ import annotations

import asyncio

from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from service.errors import ServiceError
from service.rpc.transport.streams import Method, Reply, Stream

SERVICE = "grpc.health.v1.Health"
_NOT_FOUND, _INVALID_ARGUMENT = 5, 3
_WATCHED_MAX = 1_000
"""Watches at once: each is a call that never ends of itself."""
_RESOURCE_EXHAUSTED = 8


class Health:
    """The health of the server as a whole, named "", and of the services it has, which share one."""

    def __init__(self, services: tuple[str, ...]) -> None:
        """Begins as not serving."""
        self._names = ("", *services)
        self._serving = False
        self._watches: set[asyncio.Event] = set()
        self._ended = False

    def methods(self) -> dict[bytes, Method]:
        """Returns the methods by path."""
        return {
            f"/{SERVICE}/Check".encode(): Method(self._check),
            f"/{SERVICE}/Watch".encode(): Method(self._watch, at_once=True),
        }

    def set_serving(self, serving: bool) -> None:
        """Tells every watch. On the event loop."""
        self._serving = serving
        self._wake()

    def end_watches(self) -> None:
        """Ends every watch, the service as not serving: one watcher would hold a drain up for all of its time."""
        self._serving, self._ended = False, True
        self._wake()

    def _wake(self) -> None:
        for watch in self._watches:
            watch.set()

    async def _check(self, stream: Stream) -> Reply:
        try:
            name = _name(await stream.message())
        except (ServiceError, DecodeError):
            return Reply(None, _INVALID_ARGUMENT, "this is no HealthCheckRequest")
        if name not in self._names:
            return Reply(None, _NOT_FOUND, "no such service")
        return Reply(self._status(name))

    async def _watch(self, stream: Stream) -> Reply:
        if len(self._watches) >= _WATCHED_MAX:
            return Reply(None, _RESOURCE_EXHAUSTED, f"{_WATCHED_MAX} watches are open, no more are taken")
        changed = asyncio.Event()
        self._watches.add(changed)
        try:
            async for message in stream.messages():
                name, told = _name(message), b""
                while True:
                    changed.clear()
                    status = self._status(name)
                    if status != told:
                        await stream.send(status)
                        told = status
                    if self._ended:
                        return Reply(None)
                    await changed.wait()
        except (ServiceError, DecodeError):
            pass
        finally:
            self._watches.discard(changed)
        return Reply(None, _INVALID_ARGUMENT, "this is no HealthCheckRequest")

    def _status(self, name: str) -> bytes:
        kinds = health_pb2.HealthCheckResponse
        status = kinds.SERVING if self._serving else kinds.NOT_SERVING
        answer = kinds(status=status if name in self._names else kinds.SERVICE_UNKNOWN)
        return bytes(answer.SerializeToString())


def _name(message: bytes) -> str:
    return str(health_pb2.HealthCheckRequest.FromString(message).service)
