from __future__ import annotations

import pytest
from hpack import Decoder
from hypothesis import given
from hypothesis import strategies as st

from service.rpc.transport import frames
from service.rpc.transport.frames import Fault, Kind, Setting
from service.rpc.transport.messages import HEAD, OK, prefixed, status_block
from service.rpc.transport.sending import Outgoing, Outlet


class Wire:
    """What an outlet wrote, as frames, and the streams that ended."""

    def __init__(self) -> None:
        self.frames: list[tuple[int, int, int, bytes]] = []
        self.ended: list[int] = []

    def write(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            size, head = int.from_bytes(data[at : at + 3], "big"), data[at : at + 9]
            self.frames.append((head[3], head[4], int.from_bytes(head[5:], "big"), data[at + 9 : at + 9 + size]))
            at += 9 + size
        assert at == len(data)

    def data(self, number: int) -> bytes:
        return b"".join(payload for kind, _, of, payload in self.frames if kind == Kind.DATA and of == number)


def told(settings: dict[Setting, int]) -> bytes:
    return frames.settings(settings)[frames.HEAD_BYTES :]


@given(
    st.lists(st.integers(0, 60_000), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40_000)), max_size=40),
    st.integers(0, 30_000),
)
def test_answers_go_out_whole_and_within_the_windows(
    sizes: list[int], grants: list[tuple[int, int]], initial: int
) -> None:
    wire = Wire()
    outlet = Outlet(wire, wire.ended.append)
    outlet.configure(told({Setting.INITIAL_WINDOW_SIZE: initial}), [])
    outs = {number: Outgoing(number, outlet.stream_window_bytes) for number in range(1, 2 * len(sizes), 2)}
    granted, whole = dict.fromkeys(outs, initial), frames.WINDOW_BYTES
    sent = {number: prefixed(bytes([number]) * size) for number, size in zip(outs, sizes, strict=True)}
    for number, out in outs.items():
        outlet.finish(out, sent[number][5:], OK)
    for which, size in grants:
        number = 2 * which - 1
        if number in outs:
            granted[number] += size
        elif which:
            continue
        else:
            whole += size
        outlet.grant(outs.get(number), size)
        assert all(len(wire.data(each)) <= granted[each] for each in outs)
        assert sum(len(wire.data(each)) for each in outs) <= whole
    for number, out in outs.items():
        outlet.grant(out, 100_000)
        assert sent[number].startswith(wire.data(number))
    outlet.grant(None, 1_000_000)
    assert {number: wire.data(number) for number in outs} == sent
    assert sorted(wire.ended) == list(outs)
    assert not outlet.waiting
    for number in outs:
        kinds = [kind for kind, _, of, _ in wire.frames if of == number]
        assert kinds[0] == kinds[-1] == Kind.HEADERS
        assert set(kinds[1:-1]) == {Kind.DATA}
        assert [flags & frames.END_STREAM for kind, flags, of, _ in wire.frames if of == number][-1]
    assert all(len(payload) <= frames.PAYLOAD_BYTES_MIN for _, _, _, payload in wire.frames)


def test_failure_is_one_block_of_headers() -> None:
    wire = Wire()
    outlet = Outlet(wire, wire.ended.append)
    outlet.finish(Outgoing(3, outlet.stream_window_bytes), None, b"block")
    assert wire.frames == [(Kind.HEADERS, frames.END_STREAM | frames.END_HEADERS, 3, HEAD + b"block")]


def test_changed_table_is_told_in_the_next_block_alone() -> None:
    wire = Wire()
    outlet = Outlet(wire, wire.ended.append)
    outlet.configure(told({Setting.HEADER_TABLE_SIZE: 0}), [])
    for number in (1, 3):
        outlet.finish(Outgoing(number, outlet.stream_window_bytes), b"m", OK)
    blocks = [payload for kind, _, _, payload in wire.frames if kind == Kind.HEADERS]
    assert blocks == [b"\x20" + HEAD, OK, HEAD, OK]


def test_windows_beyond_their_bounds_are_refused() -> None:
    wire = Wire()
    outlet = Outlet(wire, wire.ended.append)
    out = Outgoing(1, outlet.stream_window_bytes)
    with pytest.raises(Fault, match="WINDOW_UPDATE of 0"):
        outlet.grant(out, 0)
    with pytest.raises(Fault, match="a window of"):
        outlet.grant(None, frames.WINDOW_BYTES_MAX)
    with pytest.raises(Fault, match="a window of"):
        outlet.grant(out, frames.WINDOW_BYTES_MAX)
    with pytest.raises(Fault, match="a window of"):
        outlet.configure(told({Setting.INITIAL_WINDOW_SIZE: frames.WINDOW_BYTES_MAX + 1}), [])


def test_smaller_window_is_taken_from_streams_that_wait() -> None:
    wire = Wire()
    outlet = Outlet(wire, wire.ended.append)
    out = Outgoing(1, outlet.stream_window_bytes)
    outlet.finish(out, bytes(70_000), OK)
    assert len(wire.data(1)) == frames.WINDOW_BYTES
    outlet.configure(told({Setting.INITIAL_WINDOW_SIZE: 10}), [out])
    outlet.grant(None, 1 << 20)
    outlet.grant(out, frames.WINDOW_BYTES - 10)
    assert len(wire.data(1)) == frames.WINDOW_BYTES
    outlet.grant(out, 1 << 20)
    assert len(wire.data(1)) == 70_005


def test_dropped_stream_sends_nothing_more() -> None:
    wire = Wire()
    outlet = Outlet(wire, wire.ended.append)
    out = Outgoing(1, outlet.stream_window_bytes)
    outlet.finish(out, bytes(100_000), OK)
    outlet.drop(out)
    before = len(wire.frames)
    outlet.grant(None, 1 << 20)
    outlet.move()
    assert (len(wire.frames), wire.ended) == (before, [])


@pytest.mark.parametrize("status", [14, 8, 0])
def test_status_alone_comes_with_the_status_that_grpc_asks_of_http(status: int) -> None:
    wire = Wire()
    Outlet(wire, wire.ended.append).finish(Outgoing(1, 0), None, status_block(status, "why", ()))
    [(kind, flags, number, block)] = wire.frames
    assert (kind, flags & frames.END_STREAM, number, wire.ended) == (Kind.HEADERS, frames.END_STREAM, 1, [1])
    headers = [(str(name), str(value)) for name, value in Decoder().decode(block)]
    assert headers[0] == (":status", "200")
    assert headers[1:3] == [("content-type", "application/grpc"), ("grpc-status", str(status))]
