"""Load on a running service over loopback: closed loop (each caller waits for its answer) and open loop (Poisson).

Bodies are encoded before the clock starts, so that the generator costs as little as it can: it shares the cores with
the service. In the open loop the latency counts from the instant a request was due, so that a slow service cannot slow
the generator down and hide its own delay.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import grpc
import numpy as np


@dataclass(frozen=True)
class Measured:
    """What one block of load saw."""

    requests_per_s: float
    p50_ms: float
    p99_ms: float
    failed: int
    answered: int


class Caller(Protocol):
    """One connection of one caller."""

    async def ask(self, body: bytes) -> None:
        """Sends a request and waits for its answer; raises if the answer is a failure."""

    async def close(self) -> None:
        """Ends the connection."""


class HttpAnswer(asyncio.Protocol):
    """Reads HTTP/1.1 answers with a content-length from one kept-alive connection."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.waiting: asyncio.Future[int] | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_exception(exc or ConnectionError("the service closed the connection"))

    def data_received(self, data: bytes) -> None:
        self.received += data
        end = self.received.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self.received[:end]).lower()
        at = head.find(b"content-length:")
        length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(self.received) < end + 4 + length:
            return
        status = int(head[9:12])
        self.received.clear()
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_result(status)


class HttpCaller:
    """One caller of `POST path`."""

    def __init__(self, connection: HttpAnswer, head: bytes) -> None:
        self.connection = connection
        self.head = head

    @classmethod
    async def connect(cls, port: int, path: str, content_type: str) -> HttpCaller:
        _, connection = await asyncio.get_running_loop().create_connection(HttpAnswer, "127.0.0.1", port)
        return cls(connection, f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: {content_type}\r\n".encode())

    async def ask(self, body: bytes) -> None:
        waiting = self.connection.waiting = asyncio.get_running_loop().create_future()
        assert self.connection.transport is not None
        self.connection.transport.write(self.head + b"content-length: %d\r\n\r\n" % len(body) + body)
        status = await waiting
        if status != 200:
            raise RuntimeError(f"HTTP status {status}")

    async def close(self) -> None:
        if self.connection.transport is not None:
            self.connection.transport.close()


class GrpcCaller:
    """One caller of a unary method with encoded messages."""

    def __init__(self, channel: grpc.aio.Channel, method: str) -> None:
        self.channel = channel
        self.call = channel.unary_unary(method)

    @classmethod
    async def connect(cls, port: int, method: str) -> GrpcCaller:
        return cls(
            grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)]), method
        )

    async def ask(self, body: bytes) -> None:
        await self.call(body, timeout=20)

    async def close(self) -> None:
        await self.channel.close()


@dataclass(frozen=True)
class Door:
    """Where requests go: a port, and a path (HTTP) or a method (gRPC)."""

    port: int
    path: str
    content_type: str = ""

    async def connect(self) -> Caller:
        if self.content_type:
            return await HttpCaller.connect(self.port, self.path, self.content_type)
        return await GrpcCaller.connect(self.port, self.path)


def _measured(latencies: Sequence[float], failed: int, elapsed: float) -> Measured:
    if not latencies:
        raise RuntimeError(f"no request was answered, {failed} failed")
    p50, p99 = np.percentile(np.asarray(latencies) * 1e3, [50, 99])
    return Measured(len(latencies) / elapsed, float(p50), float(p99), failed, len(latencies))


async def closed_loop(door: Door, bodies: Sequence[bytes], callers: int, duration_s: float) -> Measured:
    """Keeps `callers` requests in flight for `duration_s` seconds."""
    connections = [await door.connect() for _ in range(callers)]
    latencies: list[float] = []
    failed = 0
    start = time.perf_counter()

    async def ask_on(connection: Caller, first: int) -> None:
        nonlocal failed
        at = first
        while time.perf_counter() - start < duration_s:
            began = time.perf_counter()
            try:
                await connection.ask(bodies[at % len(bodies)])
                latencies.append(time.perf_counter() - began)
            except (RuntimeError, grpc.aio.AioRpcError):
                failed += 1
            at += callers

    await asyncio.gather(*(ask_on(connection, first) for first, connection in enumerate(connections)))
    elapsed = time.perf_counter() - start
    for connection in connections:
        await connection.close()
    return _measured(latencies, failed, elapsed)


async def open_loop(door: Door, bodies: Sequence[bytes], rate_per_s: float, duration_s: float, seed: int) -> Measured:
    """Sends requests at Poisson instants, whether or not earlier ones were answered."""
    generator = np.random.default_rng(seed)
    due = np.cumsum(generator.exponential(1 / rate_per_s, int(rate_per_s * duration_s * 1.2) + 8))
    due = due[due < duration_s]
    idle = [await door.connect() for _ in range(16)]
    latencies: list[float] = []
    failed = 0
    start = time.perf_counter() + 0.02

    async def ask_at(number: int, instant: float) -> None:
        nonlocal failed
        connection = idle.pop() if idle else await door.connect()
        try:
            await connection.ask(bodies[number % len(bodies)])
            latencies.append(time.perf_counter() - start - instant)
        except (RuntimeError, grpc.aio.AioRpcError):
            failed += 1
        idle.append(connection)

    running = []
    for number, instant in enumerate(due):
        await asyncio.sleep(max(0.0, start + instant - time.perf_counter()))
        running.append(asyncio.create_task(ask_at(number, float(instant))))
    await asyncio.gather(*running)
    elapsed = time.perf_counter() - start
    for connection in idle:
        await connection.close()
    return _measured(latencies, failed, elapsed)
