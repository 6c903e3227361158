"""Peers that break the protocol, or keep it and ask for nothing: their connection ends, and no other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from service.rpc.transport import frames
from service.rpc.transport.frames import Kind, Reason, Setting
from service.rpc.transport.messages import prefixed
from tests.service.rpc.transport.peers import GREETING, Peer, run, serving, still_answers

Attack = Callable[[Peer], None]


def pings(peer: Peer) -> None:
    peer.send(frames.frame(Kind.PING, 0, 0, bytes(8)) * 20_000)


def resets(peer: Peer) -> None:
    for _ in range(3000):
        peer.send(peer.head("/Held"), peer.data(prefixed(b"")), frames.reset(peer.number, Reason.CANCEL))


def settings(peer: Peer) -> None:
    peer.send(frames.settings({}) * 20_000)


def empty_data(peer: Peer) -> None:
    peer.send(peer.head("/Echo"), peer.data(b"", end=False) * 20_000)


def continuations(peer: Peer) -> None:
    peer.send(frames.frame(Kind.HEADERS, 0, 1, b"x"), frames.frame(Kind.CONTINUATION, 0, 1, bytes(1000)) * 1000)


def bomb(peer: Peer) -> None:
    peer.send(peer.head("/Echo", bomb="x" * 3000, end=True))
    block = peer.encoder.encode([("bomb", "x" * 3000)] * 5000)
    peer.send(frames.headers(3, block, True, 16_384))


@pytest.mark.parametrize("attack", [pings, resets, settings, empty_data, continuations, bomb])
def test_floods_end_their_connection_and_no_other(attack: Attack) -> None:
    async def test() -> None:
        async with serving() as served:
            peer = await served.connect()
            attack(peer)
            assert await peer.farewell() == Reason.ENHANCE_YOUR_CALM
            await still_answers(served)

    run(test)


def window(size: int) -> bytes:
    return frames.frame(Kind.WINDOW_UPDATE, 0, 0, size.to_bytes(4, "big"))


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", Reason.PROTOCOL_ERROR),
        (frames.PREFACE + frames.credit(0, 1), Reason.PROTOCOL_ERROR),
        (GREETING + frames.frame(Kind.DATA, 0, 1, b"x"), Reason.PROTOCOL_ERROR),
        (GREETING + frames.frame(Kind.DATA, 0, 0, b"x"), Reason.PROTOCOL_ERROR),
        (GREETING + frames.frame(Kind.HEADERS, 4, 2, b"\x82"), Reason.PROTOCOL_ERROR),
        (GREETING + frames.frame(Kind.HEADERS, 4, 0, b"\x82"), Reason.PROTOCOL_ERROR),
        (GREETING + frames.frame(Kind.HEADERS, 4, 1, b"f"), Reason.COMPRESSION_ERROR),
        (GREETING + frames.frame(Kind.PUSH_PROMISE, 4, 1, b""), Reason.PROTOCOL_ERROR),
        (GREETING + frames.frame(Kind.PING, 0, 0, bytes(7)), Reason.FRAME_SIZE_ERROR),
        (GREETING + frames.frame(Kind.PING, 0, 1, bytes(8)), Reason.PROTOCOL_ERROR),
        (GREETING + frames.frame(Kind.RST_STREAM, 0, 1, bytes(4)), Reason.PROTOCOL_ERROR),
        (GREETING + frames.frame(Kind.SETTINGS, 1, 0, bytes(6)), Reason.FRAME_SIZE_ERROR),
        (GREETING + frames.frame(Kind.SETTINGS, 0, 1, b""), Reason.PROTOCOL_ERROR),
        (GREETING + frames.settings({Setting.ENABLE_PUSH: 2}), Reason.PROTOCOL_ERROR),
        (GREETING + frames.frame(Kind.PRIORITY, 0, 0, bytes(5)), Reason.PROTOCOL_ERROR),
        (GREETING + frames.frame(Kind.PRIORITY, 0, 1, bytes(4)), Reason.FRAME_SIZE_ERROR),
        (GREETING + frames.frame(Kind.GOAWAY, 0, 1, bytes(8)), Reason.PROTOCOL_ERROR),
        (GREETING + frames.frame(Kind.WINDOW_UPDATE, 0, 0, bytes(3)), Reason.FRAME_SIZE_ERROR),
        (GREETING + frames.frame(Kind.SETTINGS, 0, 0, bytes(5)), Reason.FRAME_SIZE_ERROR),
        (GREETING + frames.settings({Setting.MAX_FRAME_SIZE: 100}), Reason.PROTOCOL_ERROR),
        (GREETING + frames.settings({Setting.INITIAL_WINDOW_SIZE: 1 << 31}), Reason.FLOW_CONTROL_ERROR),
        (GREETING + window(0), Reason.PROTOCOL_ERROR),
        (GREETING + window(frames.WINDOW_BYTES_MAX), Reason.FLOW_CONTROL_ERROR),
        (GREETING + frames.frame(Kind.WINDOW_UPDATE, 0, 1, bytes(4)), Reason.PROTOCOL_ERROR),
        (GREETING + (1 << 20).to_bytes(3, "big") + bytes(6), Reason.FRAME_SIZE_ERROR),
    ],
)
def test_broken_protocol_ends_the_connection_with_its_reason(sent: bytes, reason: Reason) -> None:
    async def test() -> None:
        async with serving() as served:
            peer = await served.connect(sent)
            assert await peer.farewell() == reason
            await still_answers(served)

    run(test)


USUAL = ((":method", "POST"), (":scheme", "http"), (":path", "/Echo"), ("content-type", "application/grpc"))


@pytest.mark.parametrize(
    "head",
    [
        USUAL[1:],
        (USUAL[0], *USUAL[2:]),
        (*USUAL[:2], USUAL[3]),
        (*USUAL[:2], (":path", ""), USUAL[3]),
        (USUAL[0], *USUAL),
        (USUAL[3], *USUAL[:3]),
        (*USUAL, (":protocol", "x")),
        (*USUAL, ("Te", "trailers")),
        (*USUAL, ("te", "gzip")),
        (*USUAL, ("connection", "close")),
        (*USUAL, ("", "nameless")),
        (*USUAL, ("content-length", "7")),
        (*USUAL, ("content-length", "-6")),
        (*USUAL, ("content-length", "6"), ("content-length", "6")),
    ],
)
def test_request_that_is_none_ends_its_stream_and_no_other(head: tuple[tuple[str, str], ...]) -> None:
    async def test() -> None:
        async with serving() as served:
            peer = await served.connect()
            sound = (*USUAL, ("te", "trailers"), ("content-length", "6"))
            for number, pairs in ((1, sound), (3, head), (5, sound), (7, head)):  # the second time, both are known
                peer.number = number
                peer.send(frames.headers(number, peer.encoder.encode(pairs), False, 1 << 14), peer.data(prefixed(b"m")))
            told = [await peer.frame() for _ in range(4 + 2 * 2)]
            resets = [(number, payload) for kind, _, number, payload in told if kind == Kind.RST_STREAM]
            assert resets == [
                (3, Reason.PROTOCOL_ERROR.to_bytes(4, "big")),
                (7, Reason.PROTOCOL_ERROR.to_bytes(4, "big")),
            ]
            answers = [(number, payload) for kind, _, number, payload in told if kind == Kind.DATA]
            assert answers == [(1, prefixed(b"m")), (5, prefixed(b"m"))]
            assert served.room.intake_bytes == 0

    run(test)


@pytest.mark.parametrize("behind", [Kind.DATA, Kind.HEADERS])
def test_what_comes_behind_the_end_of_a_request_ends_its_stream(behind: Kind) -> None:
    async def test() -> None:
        async with serving() as served:
            peer = await served.connect()
            peer.call("/Held")
            await served.begun.wait()
            peer.send(frames.frame(behind, frames.END_STREAM | frames.END_HEADERS, 1, b""))
            assert await peer.frame() == (Kind.RST_STREAM, 0, 1, Reason.STREAM_CLOSED.to_bytes(4, "big"))
            assert served.cancelled == 1
            await still_answers(served)

    run(test)


def test_trailers_with_what_belongs_ahead_end_their_stream() -> None:
    async def test() -> None:
        async with serving() as served:
            peer = await served.connect()
            for block in ([(":path", "/Echo")], [("told", "late")]):
                peer.send(peer.head("/Echo"), peer.data(prefixed(b"m"), end=False))
                peer.send(frames.headers(peer.number, peer.encoder.encode(block), True, 1 << 14))
            kind, _, number, payload = await peer.frame()
            assert (kind, number, payload[3]) == (Kind.RST_STREAM, 1, Reason.PROTOCOL_ERROR)
            assert (await peer.answer())[0] == prefixed(b"m")

    run(test)
