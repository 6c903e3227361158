"""Sorted string tables: what TensorFlow's own look like, and what nobody should be able to make the reader do."""

from __future__ import annotations

import struct

import pytest

from export.checkpoint.formats.coding import Malformed
from export.checkpoint.formats.sstable import MAGIC, read_table
from tests.export.checkpoint.bundles import block, joined, sealed, table, varint

PAIRS = [(f"key/{number:05d}".encode(), bytes([number % 256]) * (number % 40)) for number in range(20)]


def test_read_table_any_flipped_byte_of_a_data_block_is_found() -> None:
    whole = bytearray(table(PAIRS))
    for at in range(len(block(PAIRS))):
        whole[at] ^= 0x10
        with pytest.raises(Malformed, match="checksum"):
            list(read_table(bytes(whole)))
        whole[at] ^= 0x10


WHOLE = table(PAIRS)
FOOTER_INTO_ITSELF = (varint(0) * 2 + varint(len(WHOLE) - 48) + varint(30)).ljust(40, b"\0")


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "magic number"),
        (WHOLE[:-1], "magic number"),
        (WHOLE[:-48] + FOOTER_INTO_ITSELF + MAGIC, "outside the file"),
        (WHOLE[:-48] + b"\xff" * 40 + MAGIC, "varint"),
    ],
)
def test_read_table_of_what_is_none_is_refused(data: bytes, what: str) -> None:
    with pytest.raises(Malformed, match=what):
        list(read_table(data))


def with_handles(body: bytes, *handles: tuple[int, int]) -> bytes:
    """A block, and an index that names it by these handles; by default by its own."""
    own = handles or ((0, len(body) - 5),)
    return joined(body, block([(b"z%d" % n, varint(at) + varint(size)) for n, (at, size) in enumerate(own)]))


OWN = (0, len(block(PAIRS)) - 5)


@pytest.mark.parametrize(
    "handles", [[(1 << 40, 10)], [(0, 1 << 62)], [((1 << 64) - 1, (1 << 64) - 1)], [(0, 0)], [OWN, OWN]]
)
def test_read_table_handles_outside_the_file_or_of_one_block_are_refused(handles: list[tuple[int, int]]) -> None:
    with pytest.raises(Malformed, match=r"outside the file|checksum|overlap"):
        list(read_table(with_handles(block(PAIRS), *handles)))


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (block(PAIRS, kind=1), "snappy"),
        (sealed(b"\x00\x01\x00a" + struct.pack("<I", 0xFFFFFFFF)), "restart points"),
        (block([(b"b", b""), (b"a", b"")], interval=1), "do not rise"),
        *(
            (sealed(entry + struct.pack("<II", 0, 1)), "outside its block")
            for entry in (b"\x05\x01\x00a", b"\x00\x7f\x00a", b"\x00\x01\x7fa", b"\x00\xff\xff\xff\xff\x0f\x00a")
        ),
    ],
)
def test_read_table_block_that_cannot_be_is_refused(body: bytes, what: str) -> None:
    with pytest.raises(Malformed, match=what):
        list(read_table(with_handles(body)))
