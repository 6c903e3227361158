"""Connections over real sockets, against a peer that may send any frame."""

from __future__ import annotations

import asyncio
import base64
import gc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from service.rpc.transport import frames
from service.rpc.transport.connection import Connection
from service.rpc.transport.frames import Kind, Reason, Setting
from service.rpc.transport.limits import Limits
from service.rpc.transport.messages import prefixed
from service.rpc.transport.room import CONNECTION_WINDOW_BYTES
from service.rpc.transport.streams import STREAM_WINDOW_BYTES
from tests.service.rpc.transport.peers import GREETING, WAIT_S, Peer, run, serving, still_answers

LOOPS = ["asyncio", "uvloop"]


@pytest.mark.parametrize("loop", LOOPS)
def test_call_is_answered_with_its_metadata_on_either_loop(loop: str) -> None:
    async def test() -> None:
        async with serving() as served:
            peer = await served.connect()
            for message in (b"", b"m", bytes(60_000)):
                peer.call("/Echo", message, grpc_timeout="20S")
                data, told = await peer.answer()
                assert data == prefixed(message)
                assert (told["grpc-status"], told["told"]) == ("0", "yes")
                assert base64.b64decode(told["raw-bin"] + "=") == b"\x00\xff"

    run(test, loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_calls_at_once_are_answered_each_on_its_stream_whether_by_task_or_callback(loop: str) -> None:
    async def test() -> None:
        async with serving() as served:
            peer = await served.connect()
            peer.call("/Now", b"late")
            first, messages = peer.number, {}
            for path, message in [("/Now", b"now"), ("/Echo", b"task"), ("/Now", bytes(60_000))]:
                peer.call(path, message)
                messages[peer.number] = message
            while messages:
                kind, _, number, _ = await peer.frame()
                assert kind == Kind.HEADERS
                data = b""
                while (frame := await peer.frame())[0] == Kind.DATA:
                    assert frame[2] == number
                    data += frame[3]
                assert data == prefixed(messages.pop(number))
            served.held.set()
            assert (await peer.frame())[2] == first

    run(test, loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_large_messages_pass_in_both_directions_within_windows(loop: str) -> None:
    message = bytes(range(256)) * 20_000

    async def test() -> None:
        async with serving() as served:
            peer = await served.connect()
            sent, wire = 0, prefixed(message)
            peer.send(peer.head("/Echo"))
            window = {0: CONNECTION_WINDOW_BYTES, peer.number: STREAM_WINDOW_BYTES}
            while sent < len(wire):
                step = min(16_000, len(wire) - sent, *window.values())
                if step:
                    peer.send(peer.data(wire[sent : sent + step], end=sent + step == len(wire)))
                    sent, window = sent + step, {number: left - step for number, left in window.items()}
                    continue
                head = await peer.reader.readexactly(frames.HEAD_BYTES)
                payload = await peer.reader.readexactly(int.from_bytes(head[:3], "big"))
                if head[3] == Kind.WINDOW_UPDATE and sent:
                    window[int.from_bytes(head[5:], "big")] += int.from_bytes(payload, "big")
                    window[0] = min(window[0], CONNECTION_WINDOW_BYTES)
            found = b""
            while len(found) < len(wire):
                kind, _, _, payload = await peer.frame()
                if kind == Kind.DATA:
                    found += payload
                    peer.send(frames.credit(0, len(payload)), frames.credit(peer.number, len(payload)))
            assert found == wire
            assert (await peer.answer())[1]["grpc-status"] == "0"
            assert served.room.intake_bytes == 0

    run(test, loop)


def test_messages_of_a_stream_are_answered_as_they_come() -> None:
    async def test() -> None:
        async with serving() as served:
            peer = await served.connect()
            peer.send(peer.head("/Many"))
            for message in (b"a", bytes(50_000)):
                peer.send(peer.data(prefixed(message)[:3], end=False), peer.data(prefixed(message)[3:], end=False))
                found = b""
                while len(found) < len(message) + 5:
                    kind, _, _, payload = await peer.frame()
                    found += payload if kind == Kind.DATA else b""
                assert found == prefixed(message)
                peer.send(frames.credit(0, 60_000), frames.credit(peer.number, 60_000))
            peer.send(peer.data(b""))
            assert (await peer.answer())[1]["grpc-status"] == "0"

    run(test)


@pytest.mark.parametrize(
    ("headers", "status", "sentence"),
    [
        ({"path": "/None"}, "12", "Method not found!"),
        ({"path": "/Fail"}, "13", "internal error"),
        ({"path": "/Echo", "grpc_timeout": "soon"}, "3", "grpc-timeout is b'soon'"),
        ({"path": "/Echo", "long": "x" * 5000}, "3", "the metadata has"),
        ({"path": "/Echo", "grpc_encoding": "gzip"}, "3", "the request has 0 messages"),
    ],
)
def test_call_that_cannot_be_answered_ends_with_a_status(headers: dict[str, str], status: str, sentence: str) -> None:
    async def test() -> None:
        async with serving(Limits(metadata_bytes_max=2000)) as served:
            peer = await served.connect()
            peer.send(peer.head(headers.pop("path"), end=True, **headers))
            _, told = await peer.answer()
            assert told["grpc-status"] == status
            assert sentence in told["grpc-message"] or status == "13"
            await still_answers(served)

    run(test)


@pytest.mark.parametrize("path", ["/Echo", "/Now"])
@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (prefixed(b"m") * 2, "the request has 2 messages"),
        (prefixed(b"m")[:-1], "the request ends within a message"),
        (b"\x01\x00\x00\x00\x01m", "grpc-encoding is b''"),
        (b"\x00\xff\xff\xff\xff", "the body has 4294967295 bytes; at most 1000 are taken"),
    ],
)
def test_request_that_is_no_message_is_refused(message: bytes, sentence: str, path: str) -> None:
    async def test() -> None:
        async with serving(Limits(message_bytes_max=1000)) as served:
            peer = await served.connect()
            peer.send(peer.head(path), peer.data(message))
            _, told = await peer.answer()
            assert sentence in told["grpc-message"]

    run(test)


def test_what_is_no_grpc_is_told_so_by_http() -> None:
    async def test() -> None:
        async with serving() as served:
            peer = await served.connect()
            peer.send(peer.head("/Echo", content_type="text/html"), peer.data(b"body"))
            kind, flags, number, payload = await peer.frame()
            assert (kind, number) == (Kind.HEADERS, peer.number)
            assert flags & frames.END_STREAM
            assert peer.fields(payload) == {":status": "415"}
            peer.call("/Echo")
            assert (await peer.frame())[0] == Kind.RST_STREAM
            assert (await peer.answer())[1]["grpc-status"] == "0"

    run(test)


def test_answer_waits_for_the_peers_window() -> None:
    async def test() -> None:
        async with serving() as served:
            small = frames.settings({Setting.INITIAL_WINDOW_SIZE: 0, Setting.HEADER_TABLE_SIZE: 0})
            peer = await served.connect(frames.PREFACE + small)
            peer.call("/Echo", b"12345")
            kind, _, _, payload = await peer.frame()
            assert (kind, payload[:1]) == (Kind.HEADERS, b"\x20")
            for size in (3, 4):
                peer.send(frames.credit(peer.number, size))
                assert len((await peer.frame())[3]) == size
            peer.send(frames.settings({Setting.INITIAL_WINDOW_SIZE: 100}))
            assert (await peer.answer())[0] == b"345"

    run(test)


@pytest.mark.parametrize("path", ["/Held", "/Now"])
def test_call_that_is_reset_is_cancelled(path: str) -> None:
    async def test() -> None:
        async with serving() as served:
            peer = await served.connect()
            peer.call(path, b"late")
            await served.begun.wait()
            peer.send(frames.reset(peer.number, Reason.CANCEL))
            while not served.cancelled:
                await asyncio.sleep(0.001)
            peer.call("/Echo")
            assert (await peer.answer())[1]["grpc-status"] == "0"

    run(test)


@pytest.mark.parametrize("path", ["/Held", "/Now"])
def test_calls_of_a_peer_that_leaves_are_cancelled(path: str) -> None:
    async def test() -> None:
        async with serving() as served:
            peer = await served.connect()
            peer.call(path, b"late")
            peer.send(peer.head("/Echo"), peer.data(prefixed(bytes(100))[:50], end=False))
            await served.begun.wait()
            await peer.leave()
            while not served.cancelled or served.room.connections:
                await asyncio.sleep(0.001)
            assert served.room.intake_bytes == 0

    run(test)


def test_calls_beyond_the_limit_are_refused_to_be_sent_again() -> None:
    async def test() -> None:
        async with serving(Limits(streams_max=2)) as served:
            peer = await served.connect()
            for _ in range(3):
                peer.call("/Held")
            assert (await peer.frame())[::3] == (Kind.RST_STREAM, Reason.REFUSED_STREAM.to_bytes(4, "big"))
            served.held.set()
            assert (await peer.answer())[1]["grpc-status"] == (await peer.answer())[1]["grpc-status"] == "0"

    run(test)


def test_requests_on_their_way_are_bounded_together() -> None:
    async def test() -> None:
        async with serving(Limits(intake_bytes_max=30_000)) as served:
            first, second = [await served.connect() for _ in range(2)]
            first.send(first.head("/Echo"), first.data(prefixed(bytes(40_000))[:20_000], end=False))
            while served.room.intake_bytes < 20_000:
                await asyncio.sleep(0.001)
            second.send(second.head("/Echo"), second.data(prefixed(bytes(40_000))[:20_000], end=False))
            _, told = await second.answer()
            assert "take all the memory" in told["grpc-message"]
            assert served.room.intake_bytes == 20_000

    run(test)


Wait = Callable[[Peer], Coroutine[Any, Any, None]]


async def no_preface(_: Peer) -> None:
    pass


async def idle(peer: Peer) -> None:
    peer.send(GREETING)


async def old(peer: Peer) -> None:
    peer.send(GREETING)
    peer.call("/Echo")
    await peer.answer()


async def silent(peer: Peer) -> None:
    """A peer with a call that answers no ping."""
    peer.send(GREETING)
    peer.call("/Held")


async def unread(peer: Peer) -> None:
    """A peer that grants no window for its answer."""
    peer.send(frames.PREFACE + frames.settings({Setting.INITIAL_WINDOW_SIZE: 0}))
    peer.call("/Echo", bytes(1000))


@pytest.mark.parametrize(
    ("begin", "limits"),
    [
        (no_preface, Limits(preface_s=0.1)),
        (idle, Limits(idle_s=0.1)),
        (old, Limits(age_s=0.1)),
        (silent, Limits(silence_s=0.1)),
        (unread, Limits(stall_s=0.1)),
    ],
    ids=["no preface", "idle", "old", "silent", "unread"],
)
def test_connections_end_when_their_time_is_over(begin: Wait, limits: Limits) -> None:
    async def test() -> None:
        async with serving(limits) as served:
            peer = await served.connect(b"")
            await begin(peer)
            if begin in {idle, old}:
                assert await peer.farewell() == Reason.NO_ERROR
            else:
                await peer.closed()

    run(test)


def test_request_that_does_not_come_to_its_end_is_answered() -> None:
    async def test() -> None:
        async with serving(Limits(receive_s=0.1)) as served:
            peer = await served.connect()
            peer.send(peer.head("/Echo"), peer.data(prefixed(bytes(100))[:50], end=False))
            _, told = await peer.answer()
            assert "the time for this call is over" in told["grpc-message"]
            assert served.room.intake_bytes == 0

    run(test)


def test_stop_answers_what_was_begun_and_takes_nothing_more() -> None:
    async def test() -> None:
        async with serving() as served:
            peer = await served.connect()
            peer.call("/Held")
            await served.begun.wait()
            stopped = asyncio.ensure_future(served.listener.stop(20))
            kind, _, _, payload = await peer.frame()
            assert (kind, int.from_bytes(payload[:4], "big")) == (Kind.GOAWAY, frames.STREAM_MAX)
            peer.call("/Echo", b"on its way")  # sent before the peer had read that it should not be
            peer.send(frames.frame(Kind.PING, frames.ACK, 0, b"going-by"))
            assert (await peer.answer())[0] == prefixed(b"on its way")
            assert (await peer.frame())[0] == Kind.GOAWAY
            peer.call("/Echo", b"too late")
            served.held.set()
            assert (await peer.answer())[0] == prefixed(b"m")
            await peer.closed()
            await stopped

    run(test)


@pytest.mark.parametrize("loop", LOOPS)
def test_what_comes_behind_the_end_of_a_connection_is_dropped(loop: str) -> None:
    async def test() -> None:
        async with serving() as served:
            peer = await served.connect()
            peer.call("/Held")
            await served.begun.wait()
            stopped = asyncio.ensure_future(served.listener.stop(20))
            assert (await peer.frame())[0] == Kind.GOAWAY
            peer.send(frames.frame(Kind.PING, frames.ACK, 0, b"going-by"))
            assert (await peer.frame())[0] == Kind.GOAWAY
            ping, settings = frames.frame(Kind.PING, 0, 0, bytes(8)), frames.settings({Setting.INITIAL_WINDOW_SIZE: 9})
            peer.send(frames.reset(peer.number, Reason.CANCEL), ping, settings)
            await peer.closed()
            peer.writer.close()
            await stopped

    run(test, loop)


@pytest.mark.parametrize("path", ["/Held", "/Now"])
def test_stop_cancels_what_takes_longer_than_its_grace(path: str) -> None:
    async def test() -> None:
        async with serving() as served:
            peer = await served.connect()
            peer.call(path, b"late")
            await served.begun.wait()
            stopped = asyncio.ensure_future(served.listener.stop(0.05))
            _, told = await peer.answer() if (await peer.frame())[0] == Kind.GOAWAY else (b"", {})
            assert told["grpc-status"] == "1"
            await stopped
            assert served.cancelled == 1

    run(test)


def connections() -> int:
    return sum(isinstance(each, Connection) for each in gc.get_objects())


@pytest.mark.parametrize("loop", LOOPS)
def test_closed_connection_leaves_nothing_to_the_garbage_collector(loop: str) -> None:
    async def test() -> None:
        before = connections()  # of other tests' doors
        async with serving() as served:
            peer = await served.connect()
            peer.call("/Echo", grpc_timeout="20S")
            await peer.answer()
            gc.collect()
            gc.disable()  # a collection of thousands of them would stop every call
            try:
                await peer.leave()
                async with asyncio.timeout(WAIT_S):
                    while connections() > before:
                        await asyncio.sleep(0.01)
            finally:
                gc.enable()

    run(test, loop)
