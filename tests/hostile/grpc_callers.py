"""What hostile clients of the gRPC endpoint send, as HTTP/2 frames. Each attack ends by itself within seconds."""

from __future__ import annotations

import contextlib
import gzip
import random
import time
from collections.abc import Iterator

from service.grpc_api.servicer import SERVICE
from tests.hostile.callers import (
    MIB,
    Attack,
    connections,
    end,
    idle_connections,
    other_protocols,
    send,
    send_on,
    slow_headers,
)
from tests.service.grpc_api.requests import PREFACE, frame, request_frames

DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
RETRIEVE = f"/{SERVICE}/Retrieve"


def headers_of(stream: int, path: str = RETRIEVE) -> bytes:
    """The frame that begins a call."""
    begun = request_frames(path, b"", stream)
    return begun[: 9 + int.from_bytes(begun[:3], "big")]


def never_ended_calls(port: int) -> None:
    """Bound: max_concurrent_streams, for calls whose messages never come, or never end."""
    calls = (headers_of(each) + frame(DATA, 0, each, b"\0\0\x01\0\0" + bytes(2000)) for each in range(1, 801, 2))
    with connections(port, 10, PREFACE + b"".join(calls)):
        time.sleep(0.5)


@contextlib.contextmanager
def unfinished_messages(port: int) -> Iterator[None]:
    """200 calls on one connection, each with the beginning of a message that never ends."""
    begun = b"".join(
        headers_of(stream) + frame(DATA, 0, stream, b"\0\0\0\1\0" + bytes(10)) for stream in range(1, 401, 2)
    )
    with connections(port, 1, PREFACE + begun):
        yield


def reset_calls(port: int) -> None:
    """Calls that are begun and reset at once, as fast as they can be written (CVE-2023-44487)."""
    with connections(port, 5, PREFACE) as opened:
        for connection in opened:
            for first in range(1, 20_001, 200):
                streams = range(first, first + 200, 2)
                calls = (headers_of(each) + frame(RST_STREAM, 0, each, bytes((0, 0, 0, 8))) for each in streams)
                if not send(connection, b"".join(calls)):
                    break


def endless_headers(port: int) -> None:
    """Bound: max_metadata_size, for header blocks that go on and on (CVE-2024-27316)."""
    more = b"\0\x06x-more\x7f\xa1\x1e" + b"x" * 4000
    with connections(port, 10, PREFACE + frame(HEADERS, 0, 1, headers_of(1)[9:])) as opened:
        send_on(opened, frame(CONTINUATION, 0, 1, more), 1000)


def control_frames(port: int) -> None:
    """PING, SETTINGS and WINDOW_UPDATE over 1,000 open streams, whose answers are never read."""
    opening = b"".join(headers_of(stream) for stream in range(1, 2001, 2))
    window = frame(WINDOW_UPDATE, 0, 0, (1).to_bytes(4, "big"))
    size = b"".join(frame(SETTINGS, 0, 0, b"\0\4" + value.to_bytes(4, "big")) for value in (65_535, 65_536))
    for flood in (frame(PING, 0, 0, bytes(8)) * 500, size * 250, window * 500):
        with connections(port, 10, PREFACE + opening) as opened:
            send_on(opened, flood, 100)


def large_messages(port: int) -> None:
    """Bound: max_request_bytes, for a message beyond it, declared and compressed."""
    bomb = gzip.compress(bytes(256 * MIB), 6)
    declared = b"\0" + (1 << 30).to_bytes(4, "big")
    with connections(port, 5, PREFACE + headers_of(1) + frame(DATA, 0, 1, declared + bytes(10_000))):
        pass
    encoded = headers_of(3)[9:] + b"\0\x0dgrpc-encoding\x04gzip"
    data = b"\1" + len(bomb).to_bytes(4, "big") + bomb[: 48 << 10]  # what the first window takes
    parts = [frame(DATA, 0, 3, data[at : at + 16_384]) for at in range(0, len(data), 16_384)]
    with connections(port, 5, PREFACE + frame(HEADERS, 4, 3, encoded) + b"".join(parts)):
        time.sleep(0.5)


def no_windows(port: int) -> None:
    """Clients that grant no window, and send many calls."""
    calls = b"".join(request_frames(RETRIEVE, b"", stream) for stream in range(1, 601, 2))
    with connections(port, 10, PREFACE + frame(SETTINGS, 0, 0, b"\0\4\0\0\0\0") + calls):
        time.sleep(1)


def broken_frames(port: int) -> None:
    """Frames of random kinds, sizes and streams, and messages that are none."""
    chance = random.Random(7)
    for _ in range(20):
        sent = []
        for _ in range(10):
            frames = [
                frame(chance.randrange(10), chance.randrange(256), chance.randrange(9), chance.randbytes(size))
                for size in chance.choices(range(40), k=20)
            ]
            data = request_frames(RETRIEVE, chance.randbytes(50)) + b"".join(frames)
            sent.append(PREFACE + data + chance.randbytes(100))
        with connections(port, 10, *sent) as opened:
            end(opened)


GRPC_ATTACKS: tuple[Attack, ...] = (
    slow_headers,
    never_ended_calls,
    reset_calls,
    endless_headers,
    control_frames,
    large_messages,
    no_windows,
    broken_frames,
    idle_connections,
    other_protocols,
)
