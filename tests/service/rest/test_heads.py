"""Which heads are kept, and which bytes are taken for a call with one of them. That all is answered as if it had been
parsed is a property: tests/properties/test_known_heads.py."""

from __future__ import annotations

import pytest

from service.rest.heads import Head, Heads, Memory
from service.rest.paths import Asked, asked_of

URL = b"/v1/models/m:rank"
LINE = b"POST /v1/models/m:rank HTTP/1.1\r\n"
HOST = (b"host", b"x")


def asked() -> Asked:
    found = asked_of(URL)
    assert found is not None
    return found


def learned(data: bytes, *headers: tuple[bytes, bytes], heads: Heads | None = None) -> Head | None:
    return (heads or Heads()).learned(data, URL, headers, asked())


def usual() -> Head:
    lines = b"host: x\r\nX-Request-Id: a-1\r\nx-request-timeout-ms: 250\r\ncontent-length: 2\r\n\r\n{}"
    more = ((b"x-request-id", b"a-1"), (b"x-request-timeout-ms", b"250"), (b"content-length", b"2"))
    head = learned(LINE + lines, HOST, *more)
    assert head is not None
    return head


def test_call_with_other_values_is_read_from_its_bytes() -> None:
    data = LINE + b"host: x\r\nX-Request-Id: b\r\nx-request-timeout-ms: 1000\r\ncontent-length: 4\r\n\r\nbody"
    call = usual().call_in(data)
    assert call is not None
    told = {b"host": b"x", b"x-request-id": b"b", b"x-request-timeout-ms": b"1000", b"content-length": b"4"}
    assert call.headers == told
    assert (data[call.body_at :], call.head.asked.name) == (b"body", "rank")
    assert call.head.names_itself


@pytest.mark.parametrize(
    ("line", "lines"),
    [
        (LINE, b"host: x\r\nX-Request-Id: b\r\nx-request-timeout-ms: 250\r\ncontent-length: 3\r\n\r\n{}"),
        (LINE, b"host: x\r\nX-Request-Id: b\r\nx-request-timeout-ms: 250\r\ncontent-length: 1\r\n\r\n{}"),
        (LINE, b"host: x\r\nX-Request-Id: b\r\nx-request-timeout-ms: 250\r\ncontent-length: +2\r\n\r\n{}"),
        (LINE, b"host: x\r\nX-Request-Id: b\r\nx-request-timeout-ms: 250\r\ncontent-length: 0000000002\r\n\r\n{}"),
        (LINE, b"host: x\r\nX-Request-Id: b c\r\nx-request-timeout-ms: 250\r\ncontent-length: 2\r\n\r\n{}"),
        (LINE, b"host: x\r\nX-Request-Id: b\nx: y\r\nx-request-timeout-ms: 250\r\ncontent-length: 2\r\n\r\n{}"),
        (LINE, b"host: x\r\nX-Request-Id: \r\nx-request-timeout-ms: 250\r\ncontent-length: 2\r\n\r\n{}"),
        (LINE, b"host: y\r\nX-Request-Id: b\r\nx-request-timeout-ms: 250\r\ncontent-length: 2\r\n\r\n{}"),
        (LINE, b"host: x\r\nX-Request-Id: b\r\nx-request-timeout-ms: 250\r\ncontent-length: 2\r\na: b\r\n\r\n{}"),
        (LINE, b"host: x\r\nX-Request-Id: b\r\nx-request-timeout-ms: 250\r\ncontent-len"),
        (b"POST /v1/models/m:rank HTTP/1.0\r\n", b"host: x\r\nX-Request-Id: b\r\ncontent-length: 2\r\n\r\n{}"),
    ],
)
def test_whatever_else_is_parsed(line: bytes, lines: bytes) -> None:
    assert usual().call_in(line + lines) is None


LENGTH = (b"content-length", b"2")


@pytest.mark.parametrize(
    ("lines", "headers"),
    [
        (b"host: x\r\n\r\n{}", [HOST]),
        (b"host: x\r\ncontent-length: 2\r\nexpect: a\r\n\r\n{}", [HOST, LENGTH, (b"expect", b"a")]),
        (b"host: x\r\ncontent-length: 2\r\nupgrade: a\r\n\r\n{}", [HOST, LENGTH, (b"upgrade", b"a")]),
        (b"host: x\r\ncontent-length: 2 \r\n\r\n{}", [HOST, LENGTH]),
        (b"host: x\r\ncontent-length: 2\r\n a\r\n\r\n{}", [HOST, (b"content-length", b"2 a")]),
        (b"content-length: 2\r\n\r\n{}", [HOST, LENGTH]),
        (b"content-length: 2\r\nx: " + b"x" * 2048 + b"\r\n\r\n{}", [LENGTH, (b"x", b"x" * 2048)]),
    ],
)
def test_unusual_heads_are_not_kept(lines: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    assert learned(LINE + lines, *headers) is None


def test_call_like_the_one_before_is_known_and_any_other_is_read() -> None:
    def sent(timeout_ms: bytes, body: bytes) -> bytes:
        return LINE + b"x-request-timeout-ms: %b\r\ncontent-length: %d\r\n\r\n%b" % (timeout_ms, len(body), body)

    head = learned(sent(b"250", b"{}"), (b"x-request-timeout-ms", b"250"), LENGTH)
    assert head is not None
    before = head.call_in(sent(b"250", b"ab"))
    assert before is not None
    assert head.call_in(sent(b"250", b"cd")) == before
    assert (before.values, sent(b"250", b"cd")[before.body_at :]) == ([b"250", b"2"], b"cd")
    for timeout_ms, body in ((b"251", b"cd"), (b"25", b"abc"), (b"250", b"ab" * 8), (b"250", b"ab")):
        data = sent(timeout_ms, body)
        call = head.call_in(data)
        assert call is not None
        assert call.values == [timeout_ms, b"%d" % len(body)]
        assert data[call.body_at :] == body
    assert head.call_in(data[:-1]) is None
    assert head.call_in(data + b"c") is None


def test_head_of_another_url_is_not_kept() -> None:
    data = LINE.replace(b"rank", b"embed") + b"content-length: 2\r\n\r\n{}"
    assert learned(data, LENGTH) is None


def test_callers_that_are_alike_share_a_head_and_the_oldest_gives_way() -> None:
    heads = Heads(2)

    def of(host: bytes) -> Head | None:
        data = LINE + b"host: " + host + b"\r\ncontent-length: 2\r\n\r\n{}"
        return learned(data, (b"host", host), LENGTH, heads=heads)

    first = of(b"a")
    assert first is not None
    assert of(b"a") is first
    assert of(b"b") is not first
    assert of(b"a") is first
    of(b"c")
    assert of(b"a") is not first


def test_connection_whose_heads_are_never_alike_is_compared_no_more() -> None:
    memory, heads = Memory(), Heads()
    data = LINE + b"content-length: 2\r\n\r\n{}"
    for _ in range(3):
        memory.learn(heads, data, URL, (LENGTH,), asked())
        assert memory.call_in(b"GET / HTTP/1.1\r\n\r\n") is None
    assert memory.call_in(data) is not None  # which is as before: its patience begins anew
    for _ in range(4):
        memory.learn(heads, data, URL, (LENGTH,), asked())
    assert memory.call_in(data) is None
