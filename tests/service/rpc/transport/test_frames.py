from __future__ import annotations

import pytest
from hpack import Decoder
from hypothesis import given
from hypothesis import strategies as st

from service.rpc.transport import frames
from service.rpc.transport.frames import Fault, Kind, Setting
from service.rpc.transport.reading import FrameReader

names = st.from_regex(r"[a-z0-9_-]{1,300}", fullmatch=True)


@given(st.lists(st.tuples(names, st.binary(max_size=20_000)), max_size=4))
def test_fields_are_read_by_hpack_as_they_were_written(pairs: list[tuple[str, bytes]]) -> None:
    block = b"".join(frames.field(name.encode(), value) for name, value in pairs)
    assert list(Decoder(1 << 20).decode(block, raw=True)) == [(name.encode(), value) for name, value in pairs]


@given(st.integers(0, 70_000), st.booleans())
def test_long_header_blocks_go_on_in_continuations(size: int, end: bool) -> None:
    block = bytes(range(256)) * (size // 256)
    sent = frames.PREFACE + frames.settings({}) + frames.headers(7, block, end, 16_384)
    found = list(FrameReader().frames(sent))[1:]
    assert b"".join(payload for *_, payload in found) == block
    assert [kind for kind, *_ in found] == [Kind.HEADERS] + [Kind.CONTINUATION] * (len(found) - 1)
    assert [bool(flags & frames.END_HEADERS) for _, flags, *_ in found] == [False] * (len(found) - 1) + [True]
    assert bool(found[0][1] & frames.END_STREAM) == end
    assert all(len(payload) <= 16_384 and number == 7 for _, _, number, payload in found)


def test_settings_come_back_as_they_were_told() -> None:
    told = {Setting.INITIAL_WINDOW_SIZE: 1 << 20, Setting.MAX_FRAME_SIZE: 16_384}
    assert dict(frames.settings_of(frames.settings(told)[frames.HEAD_BYTES :])) == told
    with pytest.raises(Fault, match="SETTINGS of 7 bytes"):
        list(frames.settings_of(bytes(7)))


def test_padding_and_priority_are_taken_off() -> None:
    assert frames.unpadded(frames.PADDED, b"\x02body..") == b"body"
    assert frames.unpadded(frames.WITH_PRIORITY, b"12345block") == b"block"
    assert frames.unpadded(frames.PADDED | frames.WITH_PRIORITY, b"\x0112345block.") == b"block"


@pytest.mark.parametrize(
    ("flags", "payload"),
    [
        (frames.PADDED, b""),
        (frames.PADDED, b"\x05body"),
        (frames.WITH_PRIORITY, b"1234"),
        (frames.PADDED | frames.WITH_PRIORITY, b"\x01123456"[:6]),
    ],
)
def test_more_padding_than_payload_is_a_fault(flags: int, payload: bytes) -> None:
    with pytest.raises(Fault):
        frames.unpadded(flags, payload)
