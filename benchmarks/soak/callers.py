"""Callers of routers of shards: every response is compared with that of one process which has
everything.
"""

from __future__ import annotations

import argparse
import random
import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NoReturn

import grpc
import httpx
import numpy as np

from benchmarks.soak.publishing import MODEL
from benchmarks.soak.switches import (
    PROTOBUF,
    REQUESTS,
    RESPONSES,
    SHOW,
    TRANSPORTS,
    running,
)
from service.codec.operations import OPERATIONS
from service.grpc_api.servicer import SERVICE
from tests.e2e.process import WAIT_S, Process, until
from tests.e2e.services import is_ready

PAUSE_S = 0.01
"""Between two requests of a caller: processes that start need the cores, too."""


@dataclass(frozen=True)
class Listener:
    """Where a router or a shard listens on this machine."""

    name: str
    http: int
    grpc: int


@dataclass
class Seen:
    """What callers received, when it may have failed, as (first, last) instants, and how long
    recovery took.
    """

    responses: dict[str, bytes]
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[str, float, float, str]] = field(default_factory=list)
    allowed: list[tuple[str, float, float]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    recovery_s: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, call: str, where: str, body: bytes) -> None:
        """Compares a response with that of one process."""
        self.counts["responses"] += 1
        if deterministic(call, body) != self.responses[call]:
            self.wrong.append(f"{where} {call}: the response differs from that of one process")

    def recovered(self, what: str, seconds: float) -> None:
        """Notes how long recovery took after one disturbance."""
        SHOW.print(f"{what}: recovered after {seconds:.1f} s")
        self.recovery_s[what].append(seconds)

    def report(self) -> list[str]:
        """Prints how long recovery took; returns what is wrong, each once."""
        problems_found = [*self.wrong]
        for router, begun, ended, problem in self.failures:
            excused = any(
                name in ("", router) and begun <= last and ended >= first
                for name, first, last in self.allowed
            )
            self.counts["excused failures"] += excused
            problems_found += [] if excused else [problem]
        for what, times in sorted(self.recovery_s.items()):
            middle = f"{np.median(times):.1f} s"
            longest = f"{max(times):.1f} s at most"
            SHOW.print(f"{what}, {len(times)} times: recovered after {middle}, {longest}")
        SHOW.print(f"{sum(map(len, self.recovery_s.values()))} moments:", dict(self.counts))
        problems = [
            f"{problem}, {count} times"
            for problem, count in Counter(problems_found).most_common(10)
        ]
        for problem in problems:
            SHOW.print("WRONG:", problem)
        return problems


def lasting_port() -> int:
    """Returns a port that nobody takes while what listens there is down: below those of outgoing
    connections.
    """
    while True:
        port = random.randrange(20_000, 32_000)
        with suppress(OSError), socket.create_server(("", port)):
            return port


def deterministic(call: str, body: bytes) -> bytes:
    """Returns a response as bytes that can be compared."""
    return bytes(RESPONSES[call].FromString(body).SerializeToString(deterministic=True))


def post(client: httpx.Client, call: str) -> bytes:
    """Sends a request over HTTP."""
    response = client.post(
        f"/v1/models/{MODEL}:{call}", content=REQUESTS[call].SerializeToString(), headers=PROTOBUF
    )
    return response.raise_for_status().content


def seen_of_one(root: Path) -> Seen:
    """Returns what is compared with the responses of one process which has everything."""
    alone = Process(root)
    try:
        with alone.client() as client:
            until(lambda: is_ready(client))
            return Seen({call: deterministic(call, post(client, call)) for call in REQUESTS})
    finally:
        alone.kill()


def load(routers: Sequence[Listener], seen: Seen) -> AbstractContextManager[None]:
    """Calls every router over both transports, one request after the other, until the
    `with` ends.
    """
    return running(
        [
            partial(_repeat, router, transport, seen)
            for router in routers
            for transport in TRANSPORTS
        ]
    )


def _repeat(router: Listener, transport: str, seen: Seen, done: threading.Event) -> None:
    """Sends all requests to a router again and again."""
    with (
        httpx.Client(base_url=f"http://127.0.0.1:{router.http}", timeout=WAIT_S) as client,
        grpc.insecure_channel(
            f"127.0.0.1:{router.grpc}", [("grpc.max_reconnect_backoff_ms", 200)]
        ) as channel,
    ):
        while not done.is_set():
            for call, request in REQUESTS.items():
                begun = time.monotonic()
                try:
                    if transport == "http":
                        body = post(client, call)
                    else:
                        method = channel.unary_unary(f"/{SERVICE}/{OPERATIONS[call].method}")
                        body = method(request.SerializeToString(), timeout=WAIT_S)
                except (grpc.RpcError, httpx.HTTPError) as problem:
                    seen.failures.append(
                        (router.name, begun, time.monotonic(), _described(problem))
                    )
                else:
                    seen.add(call, f"{router.name} {transport}", body)
                time.sleep(PAUSE_S)


def _described(problem: grpc.RpcError | httpx.HTTPError) -> str:
    """Returns what went wrong, on one line."""
    return (
        f"{problem.code().name}: {problem.details()}"
        if isinstance(problem, grpc.Call)
        else str(problem)
    )


def moments_parser() -> argparse.ArgumentParser:
    """Returns the arguments of what is disturbed at random moments."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--moments", type=int, default=100)
    arguments.add_argument("--seed", type=int, default=0)
    return arguments


def exit_with(problems: Sequence[str]) -> NoReturn:
    """Prints how a soak ended, and exits; exit code 1: something is wrong."""
    SHOW.print("failed" if problems else "passed")
    raise SystemExit(1 if problems else 0)
