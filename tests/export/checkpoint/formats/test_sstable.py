"""Sorted string tables: what TensorFlow's own look like, and what nobody should be able to make the reader do."""

from __future__ import annotations

import struct
import tracemalloc

import pytest

from export.checkpoint.formats.coding import Malformed
from export.checkpoint.formats.sstable import MAGIC, read_table
from tests.export.checkpoint.bundles import block, joined, sealed, table, varint

PAIRS = [(f"key/{number:05d}".encode(), bytes([number % 256]) * (number % 40)) for number in range(1000)]


def test_read_table_several_blocks_returns_every_pair_in_order() -> None:
    assert list(read_table(table(PAIRS))) == PAIRS


def test_read_table_long_keys_and_values_need_long_varints() -> None:
    pairs = [(b"a" * 300, b"x" * 70_000), (b"a" * 300 + b"b", b"")]
    assert list(read_table(table(pairs))) == pairs


def test_read_table_without_magic_says_so() -> None:
    with pytest.raises(Malformed, match="magic number"):
        list(read_table(table(PAIRS)[:-1]))


def test_read_table_empty_file_says_so() -> None:
    with pytest.raises(Malformed, match="magic number"):
        list(read_table(b""))


def test_read_table_any_flipped_byte_of_a_data_block_is_found() -> None:
    whole = bytearray(table(PAIRS[:20]))
    for at in range(len(block(PAIRS[:20]))):
        whole[at] ^= 0x10
        with pytest.raises(Malformed, match="checksum"):
            list(read_table(bytes(whole)))
        whole[at] ^= 0x10


def test_read_table_compressed_block_names_the_compression() -> None:
    body = block(PAIRS[:3], kind=1)
    index = block([(b"z", varint(0) + varint(len(body) - 5))])
    with pytest.raises(Malformed, match="snappy"):
        list(read_table(joined(body, index)))


@pytest.mark.parametrize("handle", [(1 << 40, 10), (0, 1 << 62), ((1 << 64) - 1, (1 << 64) - 1), (0, 0)])
def test_read_table_handle_outside_the_file_is_refused(handle: tuple[int, int]) -> None:
    body = block(PAIRS[:3])
    with pytest.raises(Malformed, match=r"outside the file|checksum"):
        list(read_table(joined(body, block([(b"z", varint(handle[0]) + varint(handle[1]))]))))


def test_read_table_block_named_twice_is_refused() -> None:
    body = block(PAIRS[:3])
    handle = varint(0) + varint(len(body) - 5)
    with pytest.raises(Malformed, match="overlap"):
        list(read_table(joined(body, block([(b"y", handle), (b"z", handle)]))))


def test_read_table_footer_handle_into_the_footer_is_refused() -> None:
    whole = table(PAIRS)
    footer = (varint(0) * 2 + varint(len(whole) - 48) + varint(30)).ljust(40, b"\0")
    with pytest.raises(Malformed, match="outside the file"):
        list(read_table(whole[:-48] + footer + MAGIC))


def test_read_table_endless_varint_is_refused() -> None:
    whole = table(PAIRS)
    with pytest.raises(Malformed, match="varint"):
        list(read_table(whole[:-48] + b"\xff" * 40 + MAGIC))


@pytest.mark.parametrize(
    "entry", [b"\x05\x01\x00a", b"\x00\x7f\x00a", b"\x00\x01\x7fa", b"\x00\xff\xff\xff\xff\x0f\x00a"]
)
def test_read_table_entry_outside_its_block_is_refused(entry: bytes) -> None:
    body = sealed(entry + struct.pack("<II", 0, 1))
    with pytest.raises(Malformed, match="outside its block"):
        list(read_table(joined(body, block([(b"z", varint(0) + varint(len(body) - 5))]))))


def test_read_table_restart_count_beyond_the_block_is_refused() -> None:
    body = sealed(b"\x00\x01\x00a" + struct.pack("<I", 0xFFFFFFFF))
    with pytest.raises(Malformed, match="restart points"):
        list(read_table(joined(body, block([(b"z", varint(0) + varint(len(body) - 5))]))))


def test_read_table_keys_that_do_not_rise_are_refused() -> None:
    body = block([(b"b", b""), (b"a", b"")], interval=1)
    with pytest.raises(Malformed, match="do not rise"):
        list(read_table(joined(body, block([(b"z", varint(0) + varint(len(body) - 5))]))))


def test_read_table_prefix_bomb_is_refused_before_it_unfolds() -> None:
    """100 KB of entries that share a prefix of 60 KB with one another would unfold to 1.5 GB of keys."""
    prefix = b"k" * 60_000
    entries = varint(0) + varint(len(prefix)) + varint(0) + prefix
    entries += b"".join(varint(len(prefix)) + varint(3) + varint(0) + struct.pack(">I", n)[1:] for n in range(25_000))
    body = sealed(entries + struct.pack("<II", 0, 1))
    whole = joined(body, block([(b"z" * 70, varint(0) + varint(len(body) - 5))]))
    tracemalloc.start()
    with pytest.raises(Malformed, match="unfold"):
        list(read_table(whole))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 20
