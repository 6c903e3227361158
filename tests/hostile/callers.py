"""What hostile clients send, over real sockets. Each attack ends by itself within seconds."""

from __future__ import annotations

import gzip
import json
import random
import resource
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from service.codec.stubs import embedding_service_pb2 as pb
from tests.service.grpc_api.requests import PREFACE

MIB = 1 << 20
CALL = b"POST /v1/models/movies:retrieve HTTP/1.1\r\nhost: x\r\n"
LIVE = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"
LARGE = b"GET /docs/assets/swagger-ui-bundle.js HTTP/1.1\r\nhost: x\r\n\r\n"
TOKEN = "token-of-the-tests-0123456789"
RESET = struct.pack("ii", 1, 0)
Attack = Callable[[int], None]


@contextmanager
def connections(port: int, count: int, *begun: bytes, timeout: float = 5) -> Iterator[list[socket.socket]]:
    """Opens connections and sends on each one of what is given, in turn."""
    with ExitStack() as closing:
        address = ("127.0.0.1", port)
        opened = [closing.enter_context(socket.create_connection(address, timeout=timeout)) for _ in range(count)]
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
    """Returns what the service sends next; nothing if it sends nothing for long, or has closed the connection."""
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


def end(opened: Sequence[socket.socket]) -> None:
    """Ends this side of the connections, and reads what is answered."""
    for connection in opened:
        connection.shutdown(socket.SHUT_WR)
    for connection in opened:
        read(connection)


def status_of(answer: bytes) -> int:
    """Returns the status; 0: the connection was closed instead."""
    return int(answer[9:12] or 0)


def post(body: bytes, *headers: str) -> bytes:
    lines = "".join(f"{each}\r\n" for each in (f"content-length: {len(body)}", *headers))
    return CALL + lines.encode() + b"\r\n" + body


def assert_rejected(opened: Sequence[socket.socket], *statuses: int) -> None:
    """Each is rejected with one of the statuses, or since so many came at once; at least one for what it sent."""
    found = [status_of(read(connection)) for connection in opened]
    assert set(statuses) & set(found), found
    assert set(found) <= {*statuses, 429}, found


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


def half_closed(port: int) -> None:
    """Clients that end their side within headers, within a body, and behind a request."""
    with connections(port, 240, CALL, CALL + b"content-length: 100\r\n\r\n{", LIVE, b"") as opened:
        end(opened)


def tiny_requests(port: int) -> None:
    """8,000 requests of 20 bytes, sent ahead of every answer."""
    with connections(port, 4, timeout=20) as opened:
        send_on(opened, b"GET /x HTTP/1.1\r\n\r\n" * 100, 20)
        for connection in opened:
            answered = 0
            while answered < 2000 and (part := read(connection)):
                answered += part.count(b"HTTP/1.1 404")
            assert answered >= 1990  # a status line may lie across two reads


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


def compressed(port: int, count: int, data: bytes, *statuses: int) -> None:
    """Posts a body that is small as sent."""
    body = post(gzip.compress(data, 6), "content-encoding: gzip")
    with connections(port, count, body, timeout=30) as opened:
        assert_rejected(opened, *statuses)


def gzip_bodies(port: int) -> None:
    """Bound: max_inflight_bytes, for 200 bodies of 15 KiB that become 15 MiB each."""
    compressed(port, 200, b'{"features": {"user": 3}}' + b" " * 15 * MIB, 200, 504)


def gzip_bombs(port: int) -> None:
    """Bound: max_request_bytes, for bodies of 256 KiB that are 256 MiB."""
    compressed(port, 20, bytes(256 * MIB), 413, 504)


def gzip_bodies_of_empty_lists(port: int) -> None:
    """Bound: max_values, counted before anything is parsed, for 40 bodies that are `[],[],...`."""
    compressed(port, 40, b'{"requests": [' + b"[]," * 5_000_000 + b"[]]}", 413, 504)


def many_names(port: int) -> None:
    """Bounds: max_names and max_features, for 100,000 attributes, and as many features."""
    attributes = {"attributes": ["a"] * 100_000, "features": {"user": 3}}
    features = {"features": {f"f{number}": 1 for number in range(100_000)}}
    columns = {name: pb.Column(int64s=bytes(8)) for name in features["features"]}
    messages = (pb.RetrieveRequest(attributes=attributes["attributes"]), pb.RetrieveRequest(features=columns))
    protobuf = "content-type: application/x-protobuf"
    bodies = [post(json.dumps(each).encode()) for each in (attributes, features)]
    bodies += [post(message.SerializeToString(), protobuf) for message in messages]
    with connections(port, 20, *bodies) as opened:
        assert_rejected(opened, 413)


def invalid_requests(port: int) -> None:
    """Bytes that are no HTTP, no JSON, no protobuf, or no request; headers that contradict the body or each other."""
    chance = random.Random(7)
    bodies = [b"", b"{", b"[]", b"null", b'{"features": 3}', b'{"k": NaN}', b'{"\xff": 1}', b"\xff\xfe", b"[" * 100_000]
    bodies += [b'{"k":' + b"9" * 5000 + b"}", b'{"features": {"user": [' + b"1," * 5000 + b"]}}"]
    headers = [
        *("content-type: application/x-protobuf", "content-type: text/html", "content-encoding: br", "x-a: \x7f"),
        *("content-encoding: gzip", "content-encoding: gzip\r\ncontent-encoding: gzip", "content-length: 5"),
        *("transfer-encoding: chunked", "transfer-encoding: gzip, chunked", "content-length: -1", "host: y"),
        *("content-length: 99999999999999999999", "expect: 100-continue", "x-request-timeout-ms: 9, 9", "upgrade: h2c"),
    ]
    for _ in range(40):
        sent = [post(chance.choice(bodies), chance.choice(headers)) for _ in range(7)]
        with connections(port, 10, *sent, *(chance.randbytes(300) + b"\r\n\r\n" for _ in range(3))) as opened:
            for connection in opened:
                connection.shutdown(socket.SHUT_WR)
            for connection in opened:
                assert b" 200 " not in read(connection)


def never_read(port: int) -> None:
    """Bound: what the kernel and one write buffer take of an answer, for 1.4 MB asked for 50 times a connection."""
    with connections(port, 30) as opened:
        for connection in opened:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            send(connection, LARGE * 50)
        time.sleep(1)


def hang_up(port: int) -> None:
    """Clients that reset their connections behind whole requests, and within bodies, which wait or are computed."""
    whole, half = post(b'{"features": {"user": 3}}'), CALL + b"content-length: 100000\r\n\r\n" + bytes(50_000)
    for _ in range(20):
        with connections(port, 40, whole * 3, half) as opened:
            for connection in opened:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


def idle_connections(port: int) -> None:
    """10,000 connections that send nothing, or as many as this machine's limit on open files allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = 10_000 if hard == resource.RLIM_INFINITY or hard > 12_000 else 1_000
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(count + 2_000, hard)), hard))
    with connections(port, count):
        time.sleep(1)


def other_protocols(port: int) -> None:
    """TLS and HTTP/2 where HTTP/1.1 is spoken, and the other way round."""
    client_hello = bytes.fromhex("16030100c8010000c40303") + bytes(200)
    with connections(port, 100, client_hello, PREFACE, LIVE, b"\0" * 4096, b"SSH-2.0-x\r\n") as opened:
        end(opened)


HTTP_ATTACKS: tuple[Attack, ...] = (
    slow_headers,
    slow_bodies,
    half_closed,
    tiny_requests,
    enormous_bodies,
    huge_headers,
    gzip_bodies,
    gzip_bombs,
    gzip_bodies_of_empty_lists,
    many_names,
    invalid_requests,
    never_read,
    hang_up,
    idle_connections,
    other_protocols,
)
