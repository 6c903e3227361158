"""What hostile clients send, over real sockets. Each attack ends by itself."""

from __future__ import annotations

import contextlib
import gzip
import json
import random
import resource
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress

import numpy as np

from service.codec.stubs import embedding_service_pb2 as pb
from service.grpc_api.servicer import SERVICE
from tests.e2e.process import WAIT_S
from tests.units.service.grpc_api.requests import PREFACE, frame, request_frames

MIB = 1 << 20
CALL = b"POST /v1/models/movies:retrieve HTTP/1.1\r\nhost: localhost\r\n"
LIVE = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"
LARGE = b"GET /docs/assets/swagger-ui-bundle.js HTTP/1.1\r\nhost: localhost\r\n\r\n"
TOKEN = "token-of-the-tests-0123456789"
DATA = 0
HEADERS = 1
RST_STREAM = 3
SETTINGS = 4
HALF_MESSAGE = b"\0\0\0\1\0" + bytes(10)
"""The beginning of a message of 256 bytes, as gRPC frames it."""
GOAWAY = 7
CONTINUATION = 9
RESET = struct.pack("ii", 1, 0)
Attack = Callable[[int], Iterator[None] | None]
"""Attacks a port. Where it yields, it waits until other clients were served beside it."""
Connect = Callable[[int, int], AbstractContextManager[list[socket.socket]]]


@contextmanager
def connections(
    port: int, count: int, *begun: bytes, timeout: float = 5
) -> Iterator[list[socket.socket]]:
    """Opens connections and sends on each one of what is given, in turn."""
    with ExitStack() as closing:
        address = ("127.0.0.1", port)
        opened = [
            closing.enter_context(socket.create_connection(address, timeout=timeout))
            for _ in range(count)
        ]
        for number, connection in enumerate(opened if begun else ()):
            send(connection, begun[number % len(begun)])
        yield opened


def send(connection: socket.socket, data: bytes) -> bool:
    """Sends what the service takes; returns whether it took all."""
    try:
        connection.sendall(data)
    except OSError:
        return False
    return True


def read(connection: socket.socket, count: int = 1 << 16) -> bytes:
    """Returns what the service sends next; nothing if it sends nothing for long, or has closed the
    connection.
    """
    try:
        return connection.recv(count)
    except OSError:
        return b""


def send_on(opened: Sequence[socket.socket], data: bytes, times: int) -> None:
    """Sends the same again and again, on each connection until the service takes no more."""
    for connection in opened:
        for _ in range(times):
            if not send(connection, data):
                break


def post(body: bytes, *headers: str) -> bytes:
    lines = "".join(f"{header}\r\n" for header in (f"content-length: {len(body)}", *headers))
    return CALL + lines.encode() + b"\r\n" + body


def assert_rejected(opened: Sequence[socket.socket], *statuses: int) -> None:
    """Asserts that each connection is rejected, with one of the statuses or for the number of
    connections, and that one of the statuses occurs.
    """
    for connection in opened:
        connection.settimeout(WAIT_S)
    actual = [int(read(connection)[9:12] or 0) for connection in opened]  # 0: it was closed instead
    assert set(statuses) & set(actual), actual
    assert set(actual) <= {*statuses, 429}, actual


def slow_headers(port: int) -> None:
    """Bound: 300 connections that send their headers letter by letter."""
    with connections(port, 300) as opened:
        for letter in range(10):
            for connection in opened:
                send(connection, CALL[letter : letter + 1])
            time.sleep(0.05)


def slow_bodies(port: int) -> None:
    """Bound: body_timeout_s, for bodies that come byte by byte, in chunks and with a length."""
    begun = CALL + b"transfer-encoding: chunked\r\n\r\n", CALL + b"content-length: 900000\r\n\r\n"
    with connections(port, 100, *begun) as opened:
        for _ in range(20):
            for number, connection in enumerate(opened):
                send(connection, b"{" if number % 2 else b"1\r\n{\r\n")
            time.sleep(0.05)
        assert_rejected(opened, 504)


def enormous_bodies(port: int) -> None:
    """Bound: max_request_bytes, for a body that declares 10 GB and some that do not."""
    with connections(port, 1, CALL + b"content-length: 10000000000\r\n\r\n") as declared:
        with connections(port, 4, CALL + b"transfer-encoding: chunked\r\n\r\n") as opened:
            send_on(opened, b"%x\r\n%b\r\n" % (MIB, bytes(MIB)), 40)
        assert_rejected(declared, 413)


def huge_headers(port: int) -> None:
    """Headers without an end: one that is long, many that are short."""
    for begun, part in ((CALL + b"x-long: ", b"x" * 1000), (CALL, b"a: b\r\n" * 100)):
        with connections(port, 10, begun) as opened:
            send_on(opened, part, 1000)


def gzip_bodies(port: int) -> None:
    """Bounds: max_inflight_bytes for 24 bodies that become 15 MiB each; max_request_bytes for
    bombs of 128 MiB; and max_values, counted before anything is parsed, for `[],[],...`."""
    sent: tuple[tuple[int, bytes, tuple[int, ...]], ...] = (
        (24, b'{"context": {"user": 3}}' + b" " * 15 * MIB, (200, 504)),
        (4, bytes(128 * MIB), (413, 504)),
        (4, b'{"requests": [' + b"[]," * 5_000_000 + b"[]]}", (413, 504)),
    )
    for count, data, statuses in sent:
        body = post(gzip.compress(data, 6), "content-encoding: gzip")
        with connections(port, count, body, timeout=WAIT_S) as opened:
            assert_rejected(opened, *statuses)


def invalid_requests(port: int) -> None:
    """Bytes that are no HTTP, no JSON, no protobuf, or no request; headers that contradict the body
    or each other.
    """
    chance = random.Random(7)
    bodies = [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"context": 3}',
        b'{"k": NaN}',
        b'{"\xff": 1}',
        b"\xff\xfe",
        b"[" * 100_000,
    ]
    bodies += [b'{"k":' + b"9" * 5000 + b"}", b'{"context": {"user": [' + b"1," * 5000 + b"]}}"]
    headers = [
        *(
            "content-type: application/x-protobuf",
            "content-type: text/html",
            "content-encoding: br",
            "x-a: \x7f",
        ),
        *(
            "content-encoding: gzip",
            "content-encoding: gzip\r\ncontent-encoding: gzip",
            "content-length: 5",
        ),
        *(
            "transfer-encoding: chunked",
            "transfer-encoding: gzip, chunked",
            "content-length: -1",
            "host: y",
        ),
        *(
            "content-length: 99999999999999999999",
            "expect: 100-continue",
            "x-request-timeout-ms: 9, 9",
            "connection: upgrade\r\nupgrade: h2c",
        ),
    ]
    for _ in range(40):
        sent = [post(chance.choice(bodies), chance.choice(headers)) for _ in range(7)]
        with connections(
            port, 10, *sent, *(chance.randbytes(300) + b"\r\n\r\n" for _ in range(3))
        ) as opened:
            for connection in opened:
                with contextlib.suppress(OSError):  # the service has closed it
                    connection.shutdown(socket.SHUT_WR)
            for connection in opened:
                assert b" 200 " not in read(connection)


def never_read(port: int) -> Iterator[None]:
    """Bound: what the kernel and one write buffer take of a response, where each connection
    requests 1.4 MB 50 times.
    """
    with connections(port, 30) as opened:
        for connection in opened:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            send(connection, LARGE * 50)
        yield


def leave(port: int, connect: Connect = connections) -> None:
    """Clients that leave at any moment: within one of several requests, or while they wait, are
    computed, or are responded to; by a reset, or by closing one side or both.
    """
    chance = random.Random(7)
    token = f"authorization: Bearer {TOKEN}"
    lookup = json.dumps({"feature": "user", "ids": [7] * 20_000}).encode()
    whole = [
        post(b'{"context": {"user": 3}}', token),
        post(lookup, token).replace(b":retrieve", b":lookup"),
        post(b"{}", token).replace(b":retrieve", b"/candidates/upsert"),
        *(
            LIVE.replace(b"/livez", path).replace(b"\r\n\r\n", b"\r\n%b\r\n\r\n" % token.encode())
            for path in (b"/metrics", b"/v1/models", b"/v1/status", b"/docs/assets/swagger-ui.css")
        ),
    ]
    for _ in range(100):
        requests = chance.choice(whole) * chance.choice((1, 2, 5))
        if chance.random() < 0.5:
            requests = requests[: chance.randrange(len(requests))]
        with connect(port, 1) as (connection,), contextlib.suppress(OSError):
            connection.sendall(requests)
            time.sleep(chance.random() * 0.01)
            end = chance.randrange(3)
            if end == 0:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            elif end == 1:
                connection.shutdown(socket.SHUT_WR)
                time.sleep(chance.random() * 0.01)


def leave_calls(port: int) -> None:
    """Calls over gRPC that end at any moment, with their streams or with their connections, before
    or while their clients read the response, which needs more than a window of flow control.
    """
    chance = random.Random(7)
    ids = pb.Column(int64s=np.full(20_000, 7).tobytes())
    message = pb.LookupRequest(model={"name": "movies"}, feature="user", ids=ids)
    methods = (
        (f"/{SERVICE}/Lookup", message.SerializeToString()),
        (f"/{SERVICE}/ListModels", b""),
        (f"/{SERVICE}/Change", b""),
        ("/grpc.health.v1.Health/Check", b""),
        ("/grpc.health.v1.Health/Watch", b""),
    )
    ends = (b"", frame(RST_STREAM, 0, 1, bytes((0, 0, 0, 8))), frame(GOAWAY, 0, 0, bytes(8)))
    for _ in range(100):
        path, content = chance.choice(methods)
        begun = PREFACE + request_frames(path, content, 1)
        end = chance.choice(ends)
        if chance.random() < 0.3:
            begun = begun[: chance.randrange(len(begun))]
            end = b""
        with connections(port, 1, begun) as (connection,):
            time.sleep(chance.random() * 0.02)
            send(connection, end)
            if chance.random() < 0.5:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


def idle_connections(port: int) -> Iterator[None]:
    """10,000 connections that send nothing, or as many as this machine's limit on open files
    allows.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = 10_000 if hard == resource.RLIM_INFINITY or hard > 12_000 else 1_000
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(count + 2_000, hard)), hard))
    with connections(port, count):
        yield


def headers_of(stream: int) -> bytes:
    """The frame that begins a call."""
    begun = request_frames(f"/{SERVICE}/Retrieve", b"", stream)
    return begun[: 9 + int.from_bytes(begun[:3], "big")]


def never_ended_calls(port: int) -> Iterator[None]:
    """Bound: max_concurrent_streams, for calls whose messages never come, or never end."""
    calls = (
        headers_of(number) + frame(DATA, 0, number, b"\0\0\x01\0\0" + bytes(2000))
        for number in range(1, 801, 2)
    )
    with connections(port, 10, PREFACE + b"".join(calls)):
        yield


@contextmanager
def half_open_calls(port: int, count: int, calls: int, data: bytes) -> Iterator[None]:
    """Calls on each of some connections, with the beginning of a message, or none, that never
    ends.
    """
    begun = b""
    for stream in range(1, 2 * calls, 2):
        begun += headers_of(stream)
        if data:
            begun += frame(DATA, 0, stream, data)
    with connections(port, count, PREFACE + begun):
        yield


def reset_calls(port: int) -> None:
    """Calls that are begun and reset at once, as fast as they can be written (CVE-2023-44487)."""
    with connections(port, 5, PREFACE) as opened:
        for connection in opened:
            for first in range(1, 20_001, 200):
                streams = range(first, first + 200, 2)
                calls = (
                    headers_of(stream) + frame(RST_STREAM, 0, stream, bytes((0, 0, 0, 8)))
                    for stream in streams
                )
                if not send(connection, b"".join(calls)):
                    break


def endless_headers(port: int) -> None:
    """Bound: max_metadata_size, for header blocks that go on and on (CVE-2024-27316)."""
    more = b"\0\x06x-more\x7f\xa1\x1e" + b"x" * 4000
    with connections(port, 10, PREFACE + frame(HEADERS, 0, 1, headers_of(1)[9:])) as opened:
        send_on(opened, frame(CONTINUATION, 0, 1, more), 1000)


def settings_beside_calls(port: int) -> None:
    """Settings by the thousand, beside as many calls as a connection may have."""
    calls = b"".join(map(headers_of, range(1, 2_001, 2)))
    window = b"".join(b"\0\4" + (65_535 + i % 2).to_bytes(4, "big") for i in range(1_000))
    with connections(port, 5, PREFACE + calls, timeout=2) as opened:
        send_on(opened, frame(SETTINGS, 0, 0, window) * 4, 100)


def varint(number: int) -> bytes:
    """A number of a protobuf message."""
    low = number & 0x7F
    return bytes([low]) if low == number else bytes([low | 0x80]) + varint(number >> 7)


def field(number: int, content: bytes) -> bytes:
    """A field of a protobuf message that holds bytes."""
    return bytes([number << 3 | 2]) + varint(len(content)) + content


def compressed_call(body: bytes, declared: int) -> bytes:
    """A call with (the beginning of) a compressed message of the declared length."""
    encoded = headers_of(3)[9:] + b"\0\x0dgrpc-encoding\x04gzip"
    data = b"\1" + declared.to_bytes(4, "big") + body  # at most what the first window takes
    parts = [frame(DATA, 0, 3, data[at : at + 16_384]) for at in range(0, len(data), 16_384)]
    return frame(HEADERS, 4, 3, encoded) + b"".join(parts)


def large_messages(port: int) -> Iterator[None]:
    """Bounds: max_request_bytes, for a message beyond it, declared and compressed; max_values and
    max_features, counted before anything is parsed, for millions of fields of two bytes.
    """
    bomb = gzip.compress(bytes(128 * MIB), 6)
    declared = b"\0" + (1 << 30).to_bytes(4, "big")
    with connections(
        port, 5, PREFACE + headers_of(1) + frame(DATA, 0, 1, declared + bytes(10_000))
    ):
        pass
    with connections(port, 5, PREFACE + compressed_call(bomb[: 48 << 10], len(bomb))):
        yield
    entries = b"\x22\x00" * (8 * MIB - 50)  # features without a name
    strings = field(6, field(2, b"\x0a\x00" * (8 * MIB - 50)))  # empty ids
    for message in (entries, strings):
        body = gzip.compress(message, 6)
        with connections(port, 5, PREFACE + compressed_call(body, len(body))) as opened:
            for connection in opened:
                read(connection)


@contextmanager
def secured(port: int, count: int) -> Iterator[list[socket.socket]]:
    """Connections over TLS, of clients that trust anyone."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with ExitStack() as closing, connections(port, count) as plain:
        yield [closing.enter_context(context.wrap_socket(connection)) for connection in plain]


def no_handshakes(port: int) -> Iterator[None]:
    """Connections that send nothing, something else, or half of a handshake, and stay."""
    outgoing = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(
        ssl.MemoryBIO(), outgoing, server_hostname="localhost"
    )
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    hello = outgoing.read()
    starts = (b"", hello[: len(hello) // 2], LIVE, hello, b"\x16\x03\x01\xff\xff" + bytes(3000))
    with connections(port, 150, *starts):
        yield


def never_read_over_tls(port: int) -> Iterator[None]:
    """Large responses, of which nothing is read."""
    with secured(port, 20) as opened:
        for connection in opened:
            send(
                connection,
                (LARGE[:-2] + b"authorization: Bearer " + TOKEN.encode() + b"\r\n\r\n") * 20,
            )
        yield


def wrong_tokens(port: int) -> None:
    """Tokens that are none, too long, or unknown, before bodies that never come."""
    chance = random.Random(7)
    with secured(port, 50) as opened:
        for connection in opened:
            token = chance.choice(
                [b"", b"Bearer", b"Basic eDp5", b"Bearer " + b"x" * 5000, b"Bearer \xff\xfe"]
            )
            send(
                connection,
                CALL + b"content-length: 900000\r\nauthorization: " + token + b"\r\n\r\n",
            )
        assert_rejected(opened, 401)


HTTP_ATTACKS: tuple[Attack, ...] = (
    *(
        slow_headers,
        slow_bodies,
        enormous_bodies,
        huge_headers,
        gzip_bodies,
        invalid_requests,
        never_read,
    ),
    idle_connections,
)
GRPC_ATTACKS = (
    slow_headers,
    never_ended_calls,
    reset_calls,
    endless_headers,
    large_messages,
    idle_connections,
)
TLS_ATTACKS = (never_read_over_tls, wrong_tokens)
