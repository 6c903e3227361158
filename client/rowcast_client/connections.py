"""Connections of the HTTP clients. They are opened within a second or not at all, and those of the
synchronous client are bounded by the deadline of the call that uses them.

httpcore passes the same number of seconds to each step of an exchange: every address that is tried,
every read, every write. A server that sends a byte at a time would then hold a call for ever. Here
the "timeout" of a step is the Deadline itself, and each step waits only for what is left of it.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterable
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


class DeadlineBackend(httpcore.SyncBackend):
    """Opens connections; `network_backend` of a pool of httpcore."""

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: Any = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        """Connects to the first address of a host that accepts.

        Args:
          timeout: The Deadline of the call.
        """
        deadline: Deadline = timeout
        failure: Exception = httpcore.ConnectError(f"{host} has no address")
        # The system resolves the name, and bounds that time by its own settings.
        try:
            endpoints = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as problem:
            raise httpcore.ConnectError(str(problem)) from problem
        # One by one: httpcore would give each of them the same time.
        for *_, address in endpoints:
            # As text, with the interface of a link-local address, which `address` has as a number.
            numeric_host, _ = socket.getnameinfo(
                address, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV
            )
            timeout_s = min(deadline.remaining_s(), CONNECT_TIMEOUT_S)
            try:
                stream = super().connect_tcp(
                    numeric_host, port, timeout_s, local_address, socket_options
                )
            except (httpcore.ConnectTimeout, httpcore.ConnectError) as problem:
                failure = problem
            else:
                return DeadlineStream(stream)
        raise failure


class DeadlineStream(httpcore.NetworkStream):
    """A connection; the `timeout` of each method is the Deadline of the call."""

    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: Any = None) -> bytes:
        """Waits for bytes, and returns those that are there; none if the other side has closed."""
        if timeout.is_over():
            raise httpcore.ReadTimeout("the deadline of the call has passed")
        return self._stream.read(max_bytes, timeout.remaining_s())

    def write(self, buffer: bytes, timeout: Any = None) -> None:
        """Sends all bytes."""
        if timeout.is_over():
            raise httpcore.WriteTimeout("the deadline of the call has passed")
        connection = self._stream.get_extra_info("socket")
        # Unlike httpcore's own method, sendall bounds the time of all bytes together.
        try:
            connection.settimeout(timeout.remaining_s())
            connection.sendall(buffer)
        except TimeoutError as problem:
            raise httpcore.WriteTimeout(str(problem)) from problem
        except OSError as problem:
            raise httpcore.WriteError(str(problem)) from problem

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: Any = None,
    ) -> httpcore.NetworkStream:
        """Returns the connection over TLS."""
        if timeout.is_over():
            self.close()
            raise httpcore.ConnectTimeout("the deadline of the call has passed")
        stream = self._stream.start_tls(ssl_context, server_hostname, timeout.remaining_s())
        return DeadlineStream(stream)

    def close(self) -> None:
        """Closes the connection."""
        self._stream.close()

    def get_extra_info(self, info: str) -> Any:
        """Returns the information that httpcore needs; None for everything else."""
        return self._stream.get_extra_info(info)
