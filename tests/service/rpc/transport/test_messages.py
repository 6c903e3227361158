from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import InvalidArgument, TooLarge
from service.rpc.transport.messages import MessageReader, inflated, prefixed, status_block, timeout_s_of
from service.rpc.transport.reading import HeadReader


@given(st.lists(st.binary(max_size=40), max_size=6), st.lists(st.integers(1, 30), min_size=1, max_size=60))
def test_messages_come_out_whole_however_they_are_cut(messages: list[bytes], cuts: list[int]) -> None:
    reader, sent, found = MessageReader(40), b"".join(map(prefixed, messages)), []
    at = 0
    while at < len(sent):
        step = cuts[at % len(cuts)]
        found += reader.feed(sent[at : at + step])
        at += step
    assert found == [(False, message) for message in messages]
    assert reader.held_bytes == 0


def test_message_beyond_the_limit_is_refused_by_its_prefix() -> None:
    with pytest.raises(TooLarge, match="the body has 41 bytes; at most 40 are taken"):
        MessageReader(40).feed(prefixed(bytes(41))[:5])
    with pytest.raises(InvalidArgument, match="begins with byte 7"):
        MessageReader(40).feed(b"\x07" + bytes(4))


@pytest.mark.parametrize(
    ("told", "seconds"), [(b"2H", 7200), (b"3M", 180), (b"20S", 20), (b"250m", 0.25), (b"99999999n", 0.099999999)]
)
def test_timeouts_are_told_in_six_units(told: bytes, seconds: float) -> None:
    assert timeout_s_of(told) == pytest.approx(seconds)


@pytest.mark.parametrize("told", [b"", b"1", b"S", b"-1S", b"123456789S", b"1.5S", b"1s"])
def test_what_is_no_timeout_is_refused(told: bytes) -> None:
    with pytest.raises(InvalidArgument, match="grpc-timeout"):
        timeout_s_of(told)


def test_no_timeout_is_none() -> None:
    assert timeout_s_of(None) is None


def test_status_tells_sentence_and_metadata_as_headers_may_hold_them() -> None:
    block = status_block(3, "50 % of \u00e4\n", (("x-request-id", "r"), ("details-bin", b"\x00\xff\x10")))
    head = HeadReader(1 << 16).headers(0x4, 1, block)
    assert head is not None
    assert head.fields == {
        b"grpc-status": b"3",
        b"grpc-message": b"50 %25 of %C3%A4%0A",
        b"x-request-id": b"r",
        b"details-bin": b"AP8Q",
    }
    assert status_block(0, "", ()) == b"\x00\x0bgrpc-status\x010"


def test_compressed_messages_are_unpacked_to_no_more_than_the_limit() -> None:
    plain = bytes(1000)
    assert inflated(gzip.compress(plain), b"gzip", 1000) == plain
    assert inflated(zlib.compress(plain), b"deflate", 1000) == plain
    with pytest.raises(TooLarge, match="more than 999 bytes once decompressed"):
        inflated(gzip.compress(plain), b"gzip", 999)
    with pytest.raises(TooLarge):
        inflated(gzip.compress(bytes(1 << 26)), b"gzip", 1 << 10)
    for damaged in (gzip.compress(plain)[:-4], gzip.compress(plain) + b"x"):
        with pytest.raises(InvalidArgument, match="cut short, or something is behind"):
            inflated(damaged, b"gzip", 1000)
    with pytest.raises(InvalidArgument, match="not compressed as"):
        inflated(b"plain", b"gzip", 1000)
    with pytest.raises(InvalidArgument, match=r"grpc-encoding is b'zstd'"):
        inflated(b"plain", b"zstd", 1000)
