"""Connections of the HTTP clients. They are opened within a second or not at all, and those of the
synchronous client are bounded by the deadline of the call that uses them.

httpcore passes the same number of seconds to each step of an exchange: every address that is tried,
every read, every write. A server that sends a byte at a time would then hold a call for ever. Here
the "timeout" of a step is the Deadline itself, and each step waits only for what is left of it.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import httpcore

from rowcast_client.retries import Deadline
from rowcast_client.transport import CONNECT_TIMEOUT_S


class AsyncBackend(httpcore.AnyIOBackend):
    """Opens connections of the asynchronous client."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connects to a host."""
        timeout_s = CONNECT_TIMEOUT_S
        if timeout is not None:
            timeout_s = min(timeout, CONNECT_TIMEOUT_S)
        stream = await super().connect_tcp(host, port, timeout_s, local_address, socket_options)
        return AsyncStream(stream)


class AsyncStream(httpcore.AsyncNetworkStream):
    """A connection that is closed whenever its handshake fails.

    httpcore's own stream stays open if the task is cancelled meanwhile, as by the deadline of the
    call.
    """

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Waits for bytes, and returns those that are there; none if the other side has closed."""
        return await self._stream.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Sends all bytes."""
        await self._stream.write(buffer, timeout)

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Returns the connection over TLS."""
        try:
            return await self._stream.start_tls(ssl_context, server_hostname, timeout)
        except asyncio.CancelledError:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """Closes the connection."""
        await self._stream.aclose()

    def get_extra_info(self, info: str) -> Any:
        """Returns the information that httpcore needs; None for everything else."""
        return self._stream.get_extra_info(info)


class DeadlineBackend(httpcore.NetworkBackend):
    """Opens connections; `network_backend` of a pool of httpcore."""

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: Any = None,
        local_address: str | None = None,  # noqa: ARG002 - of the interface; pools can set it
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,  # noqa: ARG002 - likewise
    ) -> httpcore.NetworkStream:
        """Connects to the first address of a host that accepts.

        Args:
          timeout: The Deadline of the call.
        """
        deadline: Deadline = timeout
        failure: Exception = httpcore.ConnectError(f"{host} has no address")
        # The system resolves the name, and bounds that time by its own settings.
        with _failures(httpcore.ConnectTimeout, httpcore.ConnectError):
            endpoints = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, address in endpoints:
            connection = socket.socket(family, kind, protocol)
            try:
                with _failures(httpcore.ConnectTimeout, httpcore.ConnectError):
                    connection.settimeout(min(deadline.remaining_s(), CONNECT_TIMEOUT_S))
                    connection.connect(address)
            except (httpcore.ConnectTimeout, httpcore.ConnectError) as problem:
                connection.close()
                failure = problem
            else:
                # Without Nagle's algorithm, as httpcore does: it would hold back the end of a small
                # request until the server acknowledges its beginning.
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return DeadlineStream(connection)
        raise failure


class DeadlineStream(httpcore.NetworkStream):
    """A connection; the `timeout` of each method is the Deadline of the call."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def read(self, max_bytes: int, timeout: Any = None) -> bytes:
        """Waits for bytes, and returns those that are there; none if the other side has closed."""
        with _failures(httpcore.ReadTimeout, httpcore.ReadError):
            self._wait_until(timeout)
            return self._connection.recv(max_bytes)

    def write(self, buffer: bytes, timeout: Any = None) -> None:
        """Sends all bytes."""
        with _failures(httpcore.WriteTimeout, httpcore.WriteError):
            self._wait_until(timeout)
            self._connection.sendall(buffer)

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: Any = None,
    ) -> httpcore.NetworkStream:
        """Returns the connection over TLS."""
        try:
            with _failures(httpcore.ConnectTimeout, httpcore.ConnectError):
                self._wait_until(timeout)
                secure = ssl_context.wrap_socket(self._connection, server_hostname=server_hostname)
        # As in httpcore's own stream: nothing else closes the socket if this method raises.
        except Exception:
            self.close()
            raise
        return DeadlineStream(secure)

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()

    def get_extra_info(self, info: str) -> Any:
        """Returns the information that httpcore needs; None for everything else.

        An idle connection that can be read has been closed by the other side.
        """
        if info == "is_readable":
            return self._connection.fileno() < 0 or _can_read(self._connection)
        if info == "ssl_object" and isinstance(self._connection, ssl.SSLSocket):
            return self._connection
        return None

    def _wait_until(self, deadline: Deadline) -> None:
        """Limits the next operation, as a whole, to the time that is left."""
        if deadline.is_over():
            raise TimeoutError("the deadline of the call has passed")
        self._connection.settimeout(deadline.remaining_s())


def _can_read(connection: socket.socket) -> bool:
    # Unlike select.select, a poll takes descriptors above 1023, which a large program may have.
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))


@contextmanager
def _failures(timeout_error: type[Exception], error: type[Exception]) -> Iterator[None]:
    """Raises the exceptions of sockets as those of httpcore."""
    try:
        yield
    except TimeoutError as problem:
        raise timeout_error(str(problem)) from problem
    except OSError as problem:
        raise error(str(problem)) from problem
