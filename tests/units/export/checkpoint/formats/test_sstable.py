"""Sorted string tables, written block by block: what is believed, and what is rejected."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest

from export.checkpoint.formats.coding import Malformed
from export.checkpoint.formats.sstable import (
    EXPANSION_FLOOR_BYTES,
    EXPANSION_MAX,
    KEY_BYTES_MAX,
    read_table,
    write_table,
)
from tests.units.export.checkpoint.tensor_bundles import block, joined, sealed, table, varint

Pair = tuple[bytes, bytes]
TRAILER_BYTES = 5
PAIRS = [(b"", b"header"), (b"a", b"1"), (b"ab", b""), (b"abc", b"33"), (b"b", b"4")]


def restarts(*offsets: int) -> bytes:
    return b"".join(struct.pack("<I", offset) for offset in (*offsets, len(offsets)))


def table_of(*blocks: bytes, handles: Sequence[tuple[int, int]] | None = None) -> bytes:
    """A table of blocks with their trailers; handles are offsets and sizes, mostly theirs."""
    if handles is None:
        starts = [sum(map(len, blocks[:number])) for number in range(len(blocks))]
        handles = [
            (start, len(entry) - TRAILER_BYTES) for start, entry in zip(starts, blocks, strict=True)
        ]
    pairs = [
        (b"%d" % number, varint(offset) + varint(size))
        for number, (offset, size) in enumerate(handles)
    ]
    return joined(b"".join(blocks), block(pairs, interval=1))


@pytest.mark.parametrize("pairs", [[], PAIRS[:1], PAIRS])
def test_table_is_written_as_the_format_has_it(pairs: list[Pair]) -> None:
    """One block of the pairs, in which every key is a restart point."""
    data = block(pairs, interval=1)
    handle = varint(0) + varint(len(data) - TRAILER_BYTES)
    index = [(pairs[-1][0], handle)] if pairs else []
    assert write_table(pairs) == joined(data, block(index, interval=1))


def test_block_of_restart_points_alone_holds_nothing() -> None:
    assert read_table(table_of(sealed(restarts()), block([(b"a", b"1")]))) == [(b"a", b"1")]


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([block([(b"b", b""), (b"a", b"")])], "keys do not rise"),
        ([block([(b"a", b""), (b"a", b"")])], "keys do not rise"),
        ([block([(b"b", b"")]), block([(b"a", b"")])], "keys do not rise"),
        ([block([(b"a", b"")]), block([(b"a", b"")])], "keys do not rise"),
        ([sealed(b"\1\0\0" + restarts(0))], "reaches outside its block"),
        ([sealed(b"\0\1\0a\2\1\0b" + restarts(0))], "reaches outside its block"),
        ([sealed(b"\0\1\2a1" + restarts(0))], "reaches outside its block"),
        ([sealed(b"abc")], "at byte 0 is too short for its restart points"),
        ([sealed(struct.pack("<I", 1))], "claims 1 restart points in 4 bytes"),
        ([sealed(b"\0\1\0a" + struct.pack("<I", 2))], "claims 2 restart points in 8 bytes"),
        ([block([(b"a", b"")], kind=1)], "at byte 0 is compressed .snappy"),
        ([block([(b"a", b"")]), block([(b"b", b"")], kind=7)], r"compressed \(type 7\)"),
        ([block([(b"a", b"1")])[:-1] + b"?"], "at byte 0 does not match its checksum"),
    ],
)
def test_table_with_a_block_that_no_writer_leaves_is_malformed(
    blocks: list[bytes], message: str
) -> None:
    with pytest.raises(Malformed, match=message):
        read_table(table_of(*blocks))


def test_table_whose_blocks_overlap_or_lie_outside_is_malformed() -> None:
    blocks = [block([(b"a", b"1")]), block([(b"b", b"2")])]
    first = (0, len(blocks[0]) - TRAILER_BYTES)
    second = (len(blocks[0]), len(blocks[1]) - TRAILER_BYTES)
    assert read_table(table_of(*blocks, handles=[first, second])) == [(b"a", b"1"), (b"b", b"2")]
    for handles in ([second, first], [first, first]):
        with pytest.raises(Malformed, match="blocks overlap or go backwards at byte 0"):
            read_table(table_of(*blocks, handles=handles))
    with pytest.raises(Malformed, match="blocks overlap"):
        read_table(table_of(*blocks, handles=[first, (second[0] - 1, second[1])]))
    whole = len(table_of(*blocks, handles=[(100, 9)]))
    body = whole - 48
    for handle in ((body + 1, 0), (0, body - 4), (body - 4, 0)):
        with pytest.raises(Malformed, match=f"byte {handle[0]} lies outside the file of"):
            read_table(table_of(*blocks, handles=[handle]))


def test_keys_are_at_most_64_kib_long() -> None:
    longest = [(b"k" * KEY_BYTES_MAX, b"1")]
    assert read_table(table_of(block(longest))) == longest
    with pytest.raises(Malformed, match="unfold to more than 65536 bytes each"):
        read_table(table_of(block([(b"k" * (KEY_BYTES_MAX + 1), b"1")])))


def sharing_block(pairs: Sequence[Pair], prefix: bytes) -> bytes:
    """Returns a block in which keys share a prefix with the first one."""
    entries = b""
    for number, (key, value) in enumerate(pairs):
        shared = len(prefix) if number and key.startswith(prefix) else 0
        entries += varint(shared) + varint(len(key) - shared) + varint(len(value))
        entries += key[shared:] + value
    return sealed(entries + restarts(0))


def test_keys_that_share_prefixes_unfold_to_a_multiple_of_the_file() -> None:
    prefix = b"k" * (KEY_BYTES_MAX - 2)

    def sharing(count: int) -> tuple[bytes, list[Pair]]:
        pairs = [(prefix + b"%02d" % number, b"") for number in range(count)]
        return table_of(sharing_block(pairs, prefix)), pairs

    data, pairs = sharing(32)
    assert sum(len(key) for key, _ in pairs) < EXPANSION_FLOOR_BYTES + EXPANSION_MAX * len(data)
    assert read_table(data) == pairs
    with pytest.raises(Malformed, match="or 16 times the file"):
        read_table(sharing(34)[0])


def test_keys_unfold_to_the_allowance_and_no_further() -> None:
    prefix = b"k" * (KEY_BYTES_MAX - 10)

    def unfolding(last_bytes: int, value_bytes: int) -> tuple[bytes, list[Pair], int]:
        pairs = [(prefix + b"%02d" % number, b"") for number in range(33)]
        pairs.append((b"l" * last_bytes, bytes(value_bytes)))
        data = table_of(sharing_block(pairs, prefix))
        unfolded = sum(len(key) for key, _ in pairs)
        # The keys of the index block unfold as well: one byte.
        remaining = EXPANSION_FLOOR_BYTES + EXPANSION_MAX * len(data) - 1 - unfolded
        return data, pairs, remaining


def test_footer_alone_is_malformed() -> None:
    with pytest.raises(Malformed, match="a block of 0 bytes at byte 0 lies outside the file of 48"):
        read_table(bytes(40) + write_table([])[-8:])


@pytest.mark.parametrize("cut", [1, 40, 48, 60])
def test_table_that_is_cut_short_is_malformed(cut: int) -> None:
    data = table(PAIRS)
    with pytest.raises(Malformed, match="cut short, or another kind of file"):
        read_table(data[:-cut])
    with pytest.raises(Malformed, match="cut short, or another kind of file"):
        read_table(data[-47:])
