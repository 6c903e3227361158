from __future__ import annotations

from contextlib import suppress

import pytest
from hpack import Encoder
from hypothesis import given
from hypothesis import strategies as st

from service.rpc.transport import frames
from service.rpc.transport.frames import Fault, Kind
from service.rpc.transport.reading import PAYLOAD_BYTES_MAX, FrameReader, HeadReader

GREETING = frames.PREFACE + frames.settings({})
payloads = st.lists(st.tuples(st.integers(10, 255), st.integers(0, 255), st.binary(max_size=50)), max_size=8)


@given(payloads, st.lists(st.integers(1, 40), min_size=1, max_size=60))
def test_frames_come_out_whole_however_they_are_cut(sent: list[tuple[int, int, bytes]], cuts: list[int]) -> None:
    wire = GREETING
    for kind, flags, payload in sent:
        wire += len(payload).to_bytes(3, "big") + bytes((kind, flags)) + (3).to_bytes(4, "big") + payload
    reader, found, at = FrameReader(), [], 0
    while at < len(wire):
        step = cuts[at % len(cuts)]
        found += list(reader.frames(wire[at : at + step]))
        at += step
    assert found == [(Kind.SETTINGS, 0, 0, b""), *((kind, flags, 3, payload) for kind, flags, payload in sent)]


@given(st.binary(max_size=400))
def test_any_bytes_are_frames_or_a_fault(data: bytes) -> None:
    with suppress(Fault):
        assert len(list(FrameReader().frames(GREETING + data))) >= 1


@pytest.mark.parametrize(
    ("sent", "sentence"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "this is no HTTP/2"),
        (frames.PREFACE + frames.credit(0, 1), "the first frame is not SETTINGS"),
        (GREETING + frames.frame(Kind.CONTINUATION, 4, 1, b""), "goes on where none began"),
        (GREETING + frames.frame(Kind.HEADERS, 0, 1, b"") + frames.credit(0, 1), "a header block is interrupted"),
        (GREETING + (PAYLOAD_BYTES_MAX + 1).to_bytes(3, "big") + bytes(6), "a frame of 65537 bytes"),
    ],
)
def test_what_does_not_belong_there_is_a_fault(sent: bytes, sentence: str) -> None:
    with pytest.raises(Fault, match=sentence):
        list(FrameReader().frames(sent))


def test_block_in_pieces_is_one_block() -> None:
    block = Encoder().encode([("a", "1"), ("b", "2" * 100)])
    heads = HeadReader(1 << 12)
    assert heads.headers(frames.END_STREAM, 5, block[:3]) is None
    assert heads.continuation(0, 5, block[3:9]) is None
    head = heads.continuation(frames.END_HEADERS, 5, block[9:])
    assert head is not None
    assert (head.flags, head.number, head.size_bytes) == (frames.END_STREAM, 5, len(block))
    assert head.fields == {b"a": b"1", b"b": b"2" * 100}


def test_pieces_of_another_stream_or_without_end_are_a_fault() -> None:
    heads = HeadReader(1 << 10)
    heads.headers(0, 5, b"")
    with pytest.raises(Fault, match="another stream"):
        heads.continuation(0, 7, b"x")
    with pytest.raises(Fault, match="empty pieces"):
        heads.continuation(0, 5, b"")
    heads.continuation(0, 5, bytes(1024))
    with pytest.raises(Fault, match="more than 1024 bytes"):
        heads.continuation(0, 5, bytes(1))
