"""Load on a running service over loopback: closed loop (each caller waits for its response) and
open loop (Poisson).

The generator is `load.c`, compiled on demand, in a process of its own. It may share the cores with
the service, so requests are encoded before the clock starts, and what they cost the generator is
reported.
"""

from __future__ import annotations

import math
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks import cores

SOURCE = Path(__file__).with_name("load.c")
PROGRAM = Path("build/bench/load")
SUCCESS = 200
CONNECTIONS_MAX = 512
"""The number of connections of an open loop, unless a caller passes another number; requests beyond
them wait in the generator, on the clock.
"""
FRAME_BYTES_MAX = 16_384
_HEADERS = 1
_DATA = 0
_END_HEADERS = 4
_END_STREAM = 1

Floats = NDArray[np.float64]


class ServiceLost(Exception):
    """A service accepts no connections; the message is that of the generator."""


class NoCompiler(Exception):
    """There is no C compiler for the load generator."""


@dataclass(frozen=True)
class Endpoint:
    """Where requests go: a port, and a path (HTTP) or a method (gRPC: no content type)."""

    port: int
    path: str
    content_type: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    def encode(self, body: bytes) -> bytes:
        """Returns a request as it goes over the wire; of gRPC with 0 for the stream."""
        if self.content_type:
            fields = {
                "host": "127.0.0.1",
                "content-type": self.content_type,
                "content-length": str(len(body)),
            }
            lines = "".join(
                f"{name}: {value}\r\n" for name, value in (fields | dict(self.headers)).items()
            )
            return f"POST {self.path} HTTP/1.1\r\n{lines}\r\n".encode() + body
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": self.path,
            ":authority": "127.0.0.1",
        }
        fields |= {"te": "trailers", "content-type": "application/grpc", **self.headers}
        block = b"".join(b"\0" + _text(name) + _text(value) for name, value in fields.items())
        message = struct.pack(">BI", 0, len(body)) + body
        parts = [
            message[first : first + FRAME_BYTES_MAX]
            for first in range(0, len(message), FRAME_BYTES_MAX)
        ]
        frames = [_frame(_HEADERS, _END_HEADERS, block)]
        frames += [_frame(_DATA, _END_STREAM if part is parts[-1] else 0, part) for part in parts]
        return b"".join(frames)


@dataclass(frozen=True)
class Responses:
    """What one block of load saw.

    Attributes:
      begun_s: Times, [requests] float64, at which each was sent (open loop: due), from the start.
      latency_s: Times, [requests] float64, until its whole response.
      status: Statuses, [requests] float64: HTTP's; of gRPC 200, or the number of its
        failure; -1: connection lost, -2: no response, or not sent.
      elapsed_s: Time from the start to the last response.
      generator_s: CPU time of the generator.
    """

    begun_s: Floats
    latency_s: Floats
    status: Floats
    elapsed_s: float
    generator_s: float

    @property
    def succeeded(self) -> int:
        return int((self.status == SUCCESS).sum())

    @property
    def failed(self) -> int:
        return len(self.status) - self.succeeded

    @property
    def requests_per_s(self) -> float:
        return self.succeeded / self.elapsed_s

    def percentile_ms(self, percent: float) -> float:
        """Returns a percentile of the latency of successful requests, ms; nan without any."""
        latencies_s = self.latency_s[self.status == SUCCESS]
        return (
            float(np.percentile(latencies_s, percent)) * 1e3 if len(latencies_s) else float("nan")
        )


class Load:
    """Requests of one kind, ready to be sent again and again."""

    def __init__(self, endpoint: Endpoint, bodies: Sequence[bytes]) -> None:
        self.endpoint = endpoint
        self._scratch = tempfile.TemporaryDirectory(prefix="rowcast-load-")
        self._requests = Path(self._scratch.name) / "requests"
        with self._requests.open("wb") as file:
            for body in bodies:
                encoded = endpoint.encode(body)
                file.write(struct.pack("<I", len(encoded)) + encoded)

    def closed(self, callers: int, duration_s: float) -> Responses:
        """Keeps `callers` requests in flight for `duration_s` seconds.

        Raises:
          ServiceLost: No connection can be made.
        """
        return self._run(str(callers), f"{duration_s:g}")

    def open(
        self,
        rate_per_s: float,
        duration_s: float,
        seed: int,
        connections: int = CONNECTIONS_MAX,
        patience_s: float = math.inf,
    ) -> Responses:
        """Sends requests at Poisson instants, whether or not earlier ones have a response.

        Args:
          rate_per_s: Requests per second on average.
          duration_s: The time in which they are due.
          seed: The seed of the instants.
          connections: The maximum number of connections, each with one request at a time.
          patience_s: The time that a request waits for a connection, on the clock; then it is not
            sent.

        Raises:
          ServiceLost: No connection can be made.
        """
        gaps = np.random.default_rng(seed).exponential(
            1 / rate_per_s, int(rate_per_s * duration_s * 1.2) + 8
        )
        instants = np.cumsum(gaps)
        due = Path(self._scratch.name) / "due"
        instants[: max(1, int(np.searchsorted(instants, duration_s)))].tofile(due)
        return self._run(str(connections), f"{duration_s:g}", str(due), f"{patience_s:g}")

    def _run(self, *options: str) -> Responses:
        results = Path(self._scratch.name) / "results"
        protocol = "http" if self.endpoint.content_type else "grpc"
        program = [
            str(compiled()),
            protocol,
            str(self.endpoint.port),
            str(self._requests),
            str(results),
            *options,
        ]
        with cores.loading():
            ran = subprocess.run(program, check=False, capture_output=True, text=True)
        if ran.returncode:
            raise ServiceLost(f"port {self.endpoint.port}: {ran.stderr.strip()}")
        elapsed_s, generator_s = map(float, ran.stdout.split())
        begun, latency, status = np.fromfile(results).reshape(-1, 3).T
        return Responses(begun, latency, status, elapsed_s, generator_s)

    def close(self) -> None:
        """Removes the encoded requests."""
        self._scratch.cleanup()


@cache
def compiled() -> Path:
    """Returns the load generator, compiled if its source is newer.

    Raises:
      NoCompiler: Neither $CC nor cc exists.
    """
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise NoCompiler(
            "the load generator is written in C: install a compiler, or name one in CC"
        )
    if not PROGRAM.exists() or PROGRAM.stat().st_mtime < SOURCE.stat().st_mtime:
        PROGRAM.parent.mkdir(parents=True, exist_ok=True)
        aside = PROGRAM.with_suffix(f".{os.getpid()}")
        command = [
            compiler,
            "-O2",
            "-Wall",
            "-Wextra",
            "-D_GNU_SOURCE",
            str(SOURCE),
            "-o",
            str(aside),
        ]
        subprocess.run(command, check=True)
        aside.replace(PROGRAM)
    return PROGRAM.resolve()


def _text(value: str) -> bytes:
    # HPACK, RFC 7541 section 5.2: a literal without Huffman's code, its length with a prefix of 7
    # bits.
    encoded = value.encode()
    if len(encoded) < 127:
        return bytes([len(encoded)]) + encoded
    excess = len(encoded) - 127
    return (
        bytes([127, excess]) + encoded
        if excess < 128
        else bytes([127, excess % 128 + 128, excess // 128]) + encoded
    )


def _frame(kind: int, flags: int, payload: bytes) -> bytes:
    # RFC 9113 section 4.1: length of 24 bits, type, flags, stream.
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + bytes(4) + payload
