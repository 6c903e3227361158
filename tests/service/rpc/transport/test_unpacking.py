from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
from hpack import Decoder, Encoder, HPACKError
from hypothesis import example, given
from hypothesis import strategies as st

from service.rpc.transport.frames import Fault, Reason
from service.rpc.transport.unpacking import MALFORMED, Unpacker

BYTES_MAX = 1 << 12
names = st.sampled_from([":path", ":method", ":scheme", "te", "x-request-id", "grpc-timeout", "a", "Te", "connection"])
PSEUDO = (b":method", b":scheme", b":path", b":authority")


def combined(pairs: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """What the library found, as it is kept: values of one name in one, and whether HTTP/2 would have them all."""
    names = [name for name, _ in pairs]
    found = {name: b",".join(value for each, value in pairs if each == name) for name in names}
    ahead = [name for name in names if name in PSEUDO]
    regular = [name for name in names if name not in PSEUDO]
    sound = names == ahead + regular and len(set(ahead)) == len(ahead)
    sound = sound and all(re.fullmatch(rb"[^:A-Z][^A-Z]*", name) for name in regular)
    sound = sound and (not ahead or ({":method", ":scheme", ":path"} <= {name.decode() for name in ahead}))
    sound = sound and found.get(b":path", b"/") != b""
    sound = sound and b"connection" not in names and found.get(b"te", b"trailers") == b"trailers"
    return found if sound else {**found, MALFORMED: b""}


headers = st.lists(st.tuples(names, st.text(st.characters(max_codepoint=255), max_size=60)), max_size=6)


@given(st.lists(st.tuples(headers, st.booleans(), st.sampled_from([None, 0, 100, 4096])), max_size=6))
def test_blocks_of_an_encoder_are_unpacked_as_the_library_does(
    blocks: list[tuple[list[tuple[str, str]], bool, int | None]],
) -> None:
    encoder, decoder, unpacker = Encoder(), Decoder(BYTES_MAX), Unpacker(BYTES_MAX)
    for pairs, huffman, table_size in blocks:
        if table_size is not None:
            encoder.header_table_size = table_size
        block = encoder.encode([(name.encode(), value.encode("latin-1")) for name, value in pairs], huffman)
        assert unpacker.unpacked(block) == combined(decoder.decode(block, raw=True))


@given(st.lists(st.binary(max_size=60), max_size=6))
@example([b"f"])
@example([b"?\xa3\xa1\xfd"])
@example([b"D\x80\x7f\xd0\xd5"])
@example([b"\x40\x01a\x01b", b"\xbe", b"\x3f\x00", b"\x20", b"\xbe"])
def test_any_blocks_are_taken_or_refused_as_the_library_does(blocks: list[bytes]) -> None:
    decoder, unpacker = Decoder(BYTES_MAX), Unpacker(BYTES_MAX)
    for block in blocks:
        try:
            expected = combined(decoder.decode(block, raw=True))
        except (HPACKError, IndexError):
            with pytest.raises(Fault) as fault:
                unpacker.unpacked(block)
            assert fault.value.reason in {Reason.COMPRESSION_ERROR, Reason.ENHANCE_YOUR_CALM}
            return
        assert unpacker.unpacked(block) == expected


def test_integers_without_end_are_refused() -> None:
    with pytest.raises(Fault, match="no HPACK"):
        Unpacker(BYTES_MAX).unpacked(b"\xff" + b"\x80" * 1000)


def test_few_bytes_that_unpack_to_many_are_refused_on_the_way() -> None:
    unpacker, encoder = Unpacker(1 << 14), Encoder()
    unpacker.unpacked(encoder.encode([("a", "x" * 4000)]))
    with pytest.raises(Fault, match="more than 16384 bytes") as bomb:
        unpacker.unpacked(encoder.encode([("a", "x" * 4000)] * 100))
    assert bomb.value.reason is Reason.ENHANCE_YOUR_CALM
