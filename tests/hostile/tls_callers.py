"""What hostile clients of endpoints with TLS and tokens send. Each attack ends by itself within seconds."""

from __future__ import annotations

import random
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from tests.hostile.callers import CALL, LARGE, LIVE, TOKEN, Attack, assert_rejected, connections, end, send


@contextmanager
def secured(port: int, count: int) -> Iterator[list[socket.socket]]:
    """Connections over TLS, of clients that trust anyone."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with ExitStack() as closing, connections(port, count) as plain:
        yield [closing.enter_context(context.wrap_socket(connection)) for connection in plain]


def no_handshakes(port: int) -> None:
    """Connections that send nothing, something else, or half of a handshake, and stay."""
    hello = _hello()
    starts = (b"", hello[: len(hello) // 2], LIVE, hello, b"\x16\x03\x01\xff\xff" + bytes(3000))
    with connections(port, 150, *starts):
        time.sleep(1)


def broken_records(port: int) -> None:
    """Handshakes of which bytes are wrong, and records that are cut short."""
    chance, hello = random.Random(7), _hello()
    for _ in range(20):
        sent = []
        for _ in range(10):
            broken = bytearray(hello)
            for _ in range(3):
                broken[chance.randrange(len(broken))] = chance.randrange(256)
            sent.append(bytes(broken) + chance.randbytes(50))
        with connections(port, 10, *sent) as opened:
            end(opened)


def never_read_over_tls(port: int) -> None:
    """Large answers, of which nothing is read."""
    with secured(port, 20) as opened:
        for connection in opened:
            send(connection, (LARGE[:-2] + b"authorization: Bearer " + TOKEN.encode() + b"\r\n\r\n") * 20)
        time.sleep(1)


def wrong_tokens(port: int) -> None:
    """Tokens that are none, too long, or unknown, before bodies that never come."""
    chance = random.Random(7)
    with secured(port, 50) as opened:
        for connection in opened:
            token = chance.choice([b"", b"Bearer", b"Basic eDp5", b"Bearer " + b"x" * 5000, b"Bearer \xff\xfe"])
            send(connection, CALL + b"content-length: 900000\r\nauthorization: " + token + b"\r\n\r\n")
        assert_rejected(opened, 401)


def _hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


TLS_ATTACKS: tuple[Attack, ...] = (no_handshakes, broken_records, never_read_over_tls, wrong_tokens)
