"""What callers without manners do to a door, over real sockets. Each attack ends by itself within seconds."""

from __future__ import annotations

import gzip
import random
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from service.rest.docs import ASSETS
from service.rpc.servicer import SERVICE
from service.rpc.transport import frames
from service.rpc.transport.frames import Kind, Setting

CALL = b"POST /v1/models/movies:retrieve HTTP/1.1\r\nhost: x\r\n"
LIVE = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"
LARGE = f"GET {ASSETS}/swagger-ui-bundle.js HTTP/1.1\r\nhost: x\r\n\r\n".encode()
ZEROS = gzip.compress(bytes(256 << 20), 6)
"""256 MiB in 256 KiB."""
Attack = Callable[[int], None]


@contextmanager
def lines(port: int, count: int) -> Iterator[list[socket.socket]]:
    """So many connections to a door."""
    with ExitStack() as closing:
        yield [closing.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5)) for _ in range(count)]


def send(line: socket.socket, data: bytes) -> bool:
    """Sends what the other side takes; says whether it took all."""
    try:
        line.sendall(data)
    except OSError:
        return False
    return True


def read(line: socket.socket, count: int = 1 << 16) -> bytes:
    """What the other side says next; nothing where it says nothing for long, or has gone."""
    try:
        return line.recv(count)
    except OSError:
        return b""


def assert_refused(open_lines: list[socket.socket], status: bytes) -> None:
    """Each is refused by that status, or some because so many came at once."""
    answers = [read(line) for line in open_lines]
    assert any(status in answer for answer in answers)
    assert all(status in answer or b" 429 " in answer for answer in answers)


def slow_heads(port: int) -> None:
    """More connections than the door takes, each of which sends its headers letter by letter."""
    with lines(port, 300) as open_lines:
        for letter in range(10):
            for line in open_lines:
                send(line, CALL[letter : letter + 1])
            time.sleep(0.05)


def slow_bodies(port: int) -> None:
    """Bodies that come byte by byte, with their length told and in chunks."""
    with lines(port, 100) as open_lines:
        for number, line in enumerate(open_lines):
            told = b"content-length: 900000\r\n\r\n" if number % 2 else b"transfer-encoding: chunked\r\n\r\n"
            send(line, CALL + told)
        for _ in range(20):
            for number, line in enumerate(open_lines):
                send(line, b"{" if number % 2 else b"1\r\n{\r\n")
            time.sleep(0.05)


def half_closed(port: int) -> None:
    """Connections of which the sending half ends in a head, in a body, and behind a request."""
    for part in (CALL, CALL + b"content-length: 100\r\n\r\n{", LIVE, b""):
        with lines(port, 60) as open_lines:
            for line in open_lines:
                send(line, part)
                line.shutdown(socket.SHUT_WR)
            for line in open_lines:
                read(line)


def tiny_requests(port: int, rounds: int = 20) -> None:
    """8,000 requests, sent ahead of every answer."""
    with lines(port, 4) as open_lines:
        for line in open_lines:
            line.settimeout(20)
        for _ in range(rounds):
            for line in open_lines:
                send(line, b"GET /x HTTP/1.1\r\n\r\n" * 100)
        answered = 0
        for line in open_lines:
            while answered < 2000:
                part = read(line)
                answered += part.count(b"HTTP/1.1 404")
                if not part:
                    break
        assert answered >= 2000


def enormous_bodies(port: int) -> None:
    """One body that says how enormous it is, and some that do not."""
    with lines(port, 5) as open_lines:
        send(open_lines[0], CALL + b"content-length: 10000000000\r\n\r\n")
        for line in open_lines[1:]:
            send(line, CALL + b"transfer-encoding: chunked\r\n\r\n")
        chunk = b"%x\r\n%b\r\n" % (1 << 20, bytes(1 << 20))
        for _ in range(20):
            for line in open_lines[1:]:
                send(line, chunk)
        assert b" 413 " in read(open_lines[0])


def huge_headers(port: int) -> None:
    """Headers without an end: one that is long, many that are short, a long path."""
    for part in (b"x-long: " + b"x" * 1000, b"a: b\r\n" * 100, b"x" * 1000):
        with lines(port, 10) as open_lines:
            for line in open_lines:
                send(line, CALL if part[:1] == b"a" else CALL + b"x-long: ")
                for _ in range(1000):
                    if not send(line, part):
                        break


def gzip_bombs(port: int) -> None:
    """Bodies of 256 KiB that are 256 MiB."""
    with lines(port, 20) as open_lines:
        for line in open_lines:
            send(line, CALL + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n%b" % (len(ZEROS), ZEROS))
        assert_refused(open_lines, b" 413 ")


def invalid_requests(port: int) -> None:
    """Bytes that are no HTTP, no JSON, no protobuf, or no request."""
    chance = random.Random(7)
    bodies = [b"", b"{", b"[]", b"null", b'{"features": 3}', b"\xff\xfe", b"[" * 100_000, b'{"k":' + b"9" * 5000 + b"}"]
    for _ in range(40):
        with lines(port, 10) as open_lines:
            for line in open_lines:
                if chance.random() < 0.3:
                    send(line, chance.randbytes(300) + b"\r\n\r\n")
                    continue
                body = chance.choice(bodies)
                kind = chance.choice([b"application/json", b"application/x-protobuf", b"text/html"])
                send(line, CALL + b"content-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (kind, len(body), body))
            for line in open_lines:
                assert b" 200 " not in read(line)


def never_reads(port: int) -> None:
    """Large answers, asked for again and again, of which nothing is read."""
    with lines(port, 30) as open_lines:
        for line in open_lines:
            send(line, LARGE * 50)
        time.sleep(1)


def other_protocols(port: int) -> None:
    """TLS' hello and HTTP/2 where HTTP/1.1 is spoken, and the other way round."""
    hello = bytes.fromhex("16030100c8010000c40303") + bytes(200)
    for data in (hello, frames.PREFACE, LIVE, b"\0" * 4096, b"SSH-2.0-x\r\n"):
        with lines(port, 20) as open_lines:
            for line in open_lines:
                send(line, data)
                line.shutdown(socket.SHUT_WR)
            for line in open_lines:
                read(line)


HTTP_ATTACKS: tuple[Attack, ...] = (
    slow_heads,
    slow_bodies,
    half_closed,
    tiny_requests,
    enormous_bodies,
    huge_headers,
    gzip_bombs,
    invalid_requests,
    never_reads,
    other_protocols,
)


@contextmanager
def secured(port: int, count: int) -> Iterator[list[socket.socket]]:
    """So many connections over TLS, of callers that trust anyone."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with ExitStack() as closing, lines(port, count) as plain:
        yield [closing.enter_context(context.wrap_socket(line)) for line in plain]


def no_handshakes(port: int) -> None:
    """Connections that say nothing, something else, or half of a hello, and stay."""
    hello = _hello()
    with lines(port, 150) as open_lines:
        for number, line in enumerate(open_lines):
            send(line, (b"", hello[: len(hello) // 2], LIVE, hello, b"\x16\x03\x01\xff\xff" + bytes(3000))[number % 5])
        time.sleep(1)


def broken_records(port: int) -> None:
    """Handshakes of which bytes are wrong, and records that are cut short."""
    chance, hello = random.Random(7), _hello()
    for _ in range(20):
        with lines(port, 10) as open_lines:
            for line in open_lines:
                broken = bytearray(hello)
                for _ in range(3):
                    broken[chance.randrange(len(broken))] = chance.randrange(256)
                send(line, bytes(broken) + chance.randbytes(50))
                line.shutdown(socket.SHUT_WR)
            for line in open_lines:
                read(line)


def slow_heads_over_tls(port: int) -> None:
    """More connections than the door takes, whose headers come letter by letter."""
    with secured(port, 220) as open_lines:
        for letter in range(4):
            for line in open_lines:
                send(line, CALL[letter : letter + 1])


def never_reads_over_tls(port: int) -> None:
    """Large answers, of which nothing is read."""
    with secured(port, 20) as open_lines:
        for line in open_lines:
            send(line, (LARGE[:-2] + b"authorization: Bearer " + TOKEN.encode() + b"\r\n\r\n") * 20)
        time.sleep(1)


def wrong_tokens(port: int) -> None:
    """Tokens that are none, too long, or known to nobody, before bodies that never come."""
    chance = random.Random(7)
    with secured(port, 50) as open_lines:
        for line in open_lines:
            token = chance.choice([b"", b"Bearer", b"Basic eDp5", b"Bearer " + b"x" * 5000, b"Bearer \xff\xfe"])
            send(line, CALL + b"content-length: 900000\r\nauthorization: " + token + b"\r\n\r\n")
        assert_refused(open_lines, b" 401 ")


def _hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


TOKEN = "token-of-the-tests-0123456789"
TLS_ATTACKS: tuple[Attack, ...] = (
    no_handshakes,
    broken_records,
    slow_heads_over_tls,
    never_reads_over_tls,
    wrong_tokens,
)

BEGIN = frames.PREFACE + frames.settings({})
_HEAD = (
    b"\x83\x86"  # POST, http
    + frames.field(b":path", f"/{SERVICE}/Retrieve".encode())
    + frames.field(b":authority", b"x")
    + frames.field(b"te", b"trailers")
    + frames.field(b"content-type", b"application/grpc")
)


def asks(stream: int, message: bytes | None = None, more: bytes = b"") -> bytes:
    """The frames of a call; without a message its request has no end."""
    head = frames.headers(stream, _HEAD + more, False, 16 << 10)
    if message is None:
        return head
    prefixed = b"\0" + len(message).to_bytes(4, "big") + message
    parts = [prefixed[at : at + 16_384] for at in range(0, len(prefixed), 16_384)]
    return head + b"".join(
        frames.frame(Kind.DATA, frames.END_STREAM if part is parts[-1] else 0, stream, part) for part in parts
    )


def slow_prefaces(port: int) -> None:
    """More connections than the door takes, each of which begins letter by letter."""
    with lines(port, 300) as open_lines:
        for letter in range(10):
            for line in open_lines:
                send(line, frames.PREFACE[letter : letter + 1])
            time.sleep(0.05)


def calls_without_an_end(port: int) -> None:
    """Many calls of one connection whose requests never come, or never end."""
    with lines(port, 10) as open_lines:
        for line in open_lines:
            send(line, BEGIN)
            for stream in range(1, 801, 2):
                send(line, asks(stream) + frames.frame(Kind.DATA, 0, stream, b"\0\0\x01\0\0" + bytes(2000)))
        time.sleep(0.5)


def calls_given_up(port: int) -> None:
    """Calls that are begun and given up at once, as fast as they can be written."""
    with lines(port, 5) as open_lines:
        for line in open_lines:
            send(line, BEGIN)
            for first in range(1, 20_001, 200):
                if not send(
                    line,
                    b"".join(
                        asks(stream) + frames.reset(stream, frames.Reason.NO_ERROR)
                        for stream in range(first, first + 200, 2)
                    ),
                ):
                    break


def headers_without_an_end(port: int) -> None:
    """Header blocks that go on and on, and some that unpack to more than they are."""
    block = frames.field(b"x-more", b"x" * 4000)
    with lines(port, 10) as open_lines:
        for line in open_lines:
            send(line, BEGIN + frames.frame(Kind.HEADERS, 0, 1, _HEAD))
            for _ in range(1000):
                if not send(line, frames.frame(Kind.CONTINUATION, 0, 1, block)):
                    break
    indexed = b"\x40\x01a\x7f\xa1\x1e" + b"x" * 4000  # kept in the table, and named 10,000 times
    with lines(port, 10) as open_lines:
        for line in open_lines:
            send(line, BEGIN + frames.headers(1, _HEAD + indexed + b"\xbe" * 10_000, True, 16 << 10))


def pings(port: int) -> None:
    """Pings and settings that ask for answers which are not read."""
    asked = frames.frame(Kind.PING, 0, 0, bytes(8)) * 500 + frames.settings({}) * 500
    with lines(port, 10) as open_lines:
        for line in open_lines:
            send(line, BEGIN)
            for _ in range(100):
                if not send(line, asked):
                    break


def large_messages(port: int) -> None:
    """Messages beyond every limit, as sent and once decompressed."""
    with lines(port, 5) as open_lines:
        for line in open_lines:
            send(line, BEGIN + asks(1, bytes(8 << 20)))
        for line in open_lines:
            send(line, BEGIN + asks(3, ZEROS, frames.field(b"grpc-encoding", b"gzip")))


def windows_of_nothing(port: int) -> None:
    """Peers that grant no window, and ask a lot."""
    with lines(port, 10) as open_lines:
        for line in open_lines:
            send(line, frames.PREFACE + frames.settings({Setting.INITIAL_WINDOW_SIZE: 0}))
            for stream in range(1, 601, 2):
                send(line, asks(stream, b""))
        time.sleep(1)


def broken_frames(port: int) -> None:
    """Frames of random kinds, sizes and streams, and messages that are none."""
    chance = random.Random(7)
    for _ in range(20):
        with lines(port, 10) as open_lines:
            for line in open_lines:
                data = b"".join(
                    frames.frame(Kind(chance.randrange(10)), chance.randrange(256), chance.randrange(9), payload)
                    for payload in (chance.randbytes(chance.randrange(40)) for _ in range(20))
                )
                send(line, BEGIN + asks(1, chance.randbytes(50)) + data + chance.randbytes(100))
                line.shutdown(socket.SHUT_WR)
            for line in open_lines:
                while read(line):
                    pass


GRPC_ATTACKS: tuple[Attack, ...] = (
    slow_prefaces,
    calls_without_an_end,
    calls_given_up,
    headers_without_an_end,
    pings,
    large_messages,
    windows_of_nothing,
    broken_frames,
    other_protocols,
)
