"""LevelDB's sorted string table, the file format of a checkpoint's index: bytes -> sorted (key,
value) pairs.

    data blocks | metaindex block | index block | footer (48 bytes)
    footer   two block handles (offset, size as varints), zeros up to byte 40, 8 bytes of magic
    block    entries, u32 offsets of restart points, u32 their number; a type byte, a masked crc32c
    entry    varints: bytes shared with the previous key, key bytes, value bytes; key tail; value

Everything is checked before it is believed: handles lie inside the file, blocks follow one another,
each block matches its crc, keys rise strictly, and the keys together cannot outgrow the file by
more than a fixed factor.

Source: TensorFlow 2.20, tensorflow/core/lib/io/{format,block,table}.cc; LevelDB
doc/table_format.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

import google_crc32c

from bundle.format.checksums import mask, unmask
from export.checkpoint.formats.coding import Malformed, read_varint, varint

MAGIC = bytes.fromhex("57fb808b247547db")  # 0xdb4775248b80fb57, little-endian
FOOTER_BYTES = 48
TRAILER_BYTES = 5
KEY_BYTES_MAX = 64 << 10
"""The maximum size of a key: a key is the name of a variable."""
EXPANSION_MAX = 16
"""Key bytes per file byte that shared prefixes may unfold to: TensorFlow writes every sixteenth key
in full.
"""
EXPANSION_FLOOR_BYTES = 1 << 20
"""Key bytes that a table may unfold to, however small its file is."""

_COMPRESSIONS = {1: "snappy"}


def read_table(data: bytes) -> list[tuple[bytes, bytes]]:
    """Reads a whole table.

    Args:
      data: The file's bytes.
    Returns:
      Keys, strictly rising, with their values.
    Raises:
      Malformed: The bytes are no table, damaged, or compressed.
    """
    if len(data) < FOOTER_BYTES or data[-len(MAGIC) :] != MAGIC:
        raise Malformed(
            "it does not end with the magic number of a sorted string table: cut short, or another "
            "kind of file"
        )
    footer = data[-FOOTER_BYTES:]
    # The first handle is that of the metaindex block, which is empty in every checkpoint.
    position = read_varint(footer, read_varint(footer, 0)[1])[1]
    index = _block(data, *_handle(footer, position))
    allowance = EXPANSION_FLOOR_BYTES + EXPANSION_MAX * len(data)
    end = 0
    pairs: list[tuple[bytes, bytes]] = []
    handles: list[tuple[bytes, bytes]] = []
    _add_entries(handles, index, allowance)
    for _, handle in handles:
        offset, size = _handle(handle, 0)
        # Blocks that overlap could repeat the same bytes without end.
        if offset < end:
            raise Malformed(f"its blocks overlap or go backwards at byte {offset}")
        end = offset + size + TRAILER_BYTES
        allowance = _add_entries(pairs, _block(data, offset, size), allowance)
    return pairs


def _handle(data: bytes, position: int) -> tuple[int, int]:
    offset, position = read_varint(data, position)
    return offset, read_varint(data, position)[0]


def _block(data: bytes, offset: int, size: int) -> bytes:
    """Returns the entries of a block, without its restart points, after checking its crc."""
    body = len(data) - FOOTER_BYTES
    if size > body - offset - TRAILER_BYTES:
        raise Malformed(
            f"a block of {size} bytes at byte {offset} lies outside the file of {len(data)} bytes"
        )
    kind, masked = struct.unpack_from("<BI", data, offset + size)
    if google_crc32c.value(data[offset : offset + size + 1]) != unmask(masked):
        raise Malformed(
            f"the block at byte {offset} does not match its checksum: the file is damaged"
        )
    if kind != 0:
        raise Malformed(
            f"the block at byte {offset} is compressed "
            f"({_COMPRESSIONS.get(kind, f'type {kind}')}), which TensorFlow's V2 checkpoints never "
            "are"
        )
    if size < 4:
        raise Malformed(f"the block at byte {offset} is too short for its restart points")
    restarts = struct.unpack_from("<I", data, offset + size - 4)[0]
    if 4 * restarts > size - 4:
        raise Malformed(
            f"the block at byte {offset} claims {restarts} restart points in {size} bytes"
        )
    return data[offset : offset + size - 4 - 4 * restarts]


def _add_entries(pairs: list[tuple[bytes, bytes]], block: bytes, allowance: int) -> int:
    """Adds a block's entries to `pairs`. The keys must rise, and their bytes stay within the
    allowance.

    Returns:
      The remaining allowance.
    """
    position = 0
    end = len(block)
    key_bytes = 0
    key = b""
    last_key = None
    if pairs:
        last_key = pairs[-1][0]
    while position < end:
        shared_bytes, position = read_varint(block, position)
        tail_bytes, position = read_varint(block, position)
        value_bytes, position = read_varint(block, position)
        value_start = position + tail_bytes
        value_end = value_start + value_bytes
        if shared_bytes > key_bytes or value_end > end:
            raise Malformed("an entry reaches outside its block")
        # An entry of a few bytes can share a long key with the entry before it, so that the keys
        # of a small hostile file could fill the memory.
        key = key[:shared_bytes] + block[position:value_start]
        key_bytes = shared_bytes + tail_bytes
        allowance -= key_bytes
        if key_bytes > KEY_BYTES_MAX or allowance < 0:
            raise Malformed(
                f"its keys unfold to more than {KEY_BYTES_MAX} bytes each or {EXPANSION_MAX} times "
                "the file"
            )
        if last_key is not None and key <= last_key:
            raise Malformed("its keys do not rise")
        last_key = key
        pairs.append((key, block[value_start:value_end]))
        position = value_end
    return allowance


def write_table(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Returns a sorted string table of (key, value) pairs whose keys rise strictly: the inverse of
    `read_table`.

    All pairs lie in one block, each key in full: an index is read as a whole, and once.
    """
    pairs = list(pairs)
    table = bytearray()
    index = []
    handle = _append(table, pairs)
    if pairs:
        index = [(pairs[-1][0], handle)]
    footer = _append(table, []) + _append(table, index)
    return bytes(table) + footer.ljust(FOOTER_BYTES - len(MAGIC), b"\0") + MAGIC


def _append(table: bytearray, pairs: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Appends a block of pairs with its trailer; returns its handle."""
    body = bytearray()
    restarts = []
    for key, value in pairs:
        restarts.append(len(body))
        # Keys are written whole: 0 bytes are shared with the key before.
        body += varint(0) + varint(len(key)) + varint(len(value))
        body += key + value
    # A block has at least one restart point, even if it has no entries.
    restarts = restarts or [0]
    body += struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))
    handle = varint(len(table)) + varint(len(body))
    # The type of the block, which the checksum covers, too: not compressed.
    body += b"\0"
    table += body + struct.pack("<I", mask(google_crc32c.value(bytes(body))))
    return handle
