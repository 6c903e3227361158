"""Writes the index of a TensorBundle, `P.index`, over data files that are there already: the inverse of `read_index`.

What TensorFlow restores is decided here alone: an entry may point anywhere into any data file, so a new checkpoint over
old bytes costs no more than its index.

Source: TensorFlow 2.20, tensorflow/core/util/tensor_bundle/tensor_bundle.cc, core/lib/io/table_builder.cc.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import google_crc32c

from export.checkpoint.formats.entry_protos import DTYPE_NAMES
from export.checkpoint.formats.orderedcode import slice_key
from export.checkpoint.formats.sstable import FOOTER_BYTES, MAGIC
from export.checkpoint.formats.tensorbundle import FORMAT_VERSION
from export.checkpoint.formats.wire import BYTES, FIXED32, VARINT
from export.checkpoint.variables import Entry, Slice

BLOCK_BYTES = 256 << 10
RESTART_ENTRIES = 16

_DTYPE_NUMBERS = {name: number for number, name in DTYPE_NAMES.items()}


def data_file(prefix: Path, number: int, count: int) -> Path:
    """Returns the path of one of `count` data files of a checkpoint."""
    return Path(f"{prefix}.data-{number:05d}-of-{count:05d}")


def write_index(prefix: Path, entries: Mapping[str, Entry], data_files: int) -> None:
    """Writes the index of a checkpoint.

    Args:
      prefix: the checkpoint's path without `.index`.
      entries: every variable by its key; the files of their slices are named by `data_file`.
      data_files: how many there are.
    Raises:
      OSError: the file cannot be written.
      ValueError: an entry cannot be told in an index: an unknown dtype or file, or a slice without a crc.
    """
    numbers = {str(data_file(prefix, number, data_files)): number for number in range(data_files)}
    version = _field(1, VARINT, FORMAT_VERSION)
    table = {b"": _field(1, VARINT, data_files) + _field(3, BYTES, version)}
    for key, entry in entries.items():
        if entry.whole:
            table[key.encode()] = _entry(entry.dtype, entry.shape, _stored(entry.slices[0], numbers))
            continue
        extents = [list(zip(part.starts, part.shape, strict=True)) for part in entry.slices]
        listed = b"".join(_field(7, BYTES, _slice(each)) for each in extents)
        table[key.encode()] = _entry(entry.dtype, entry.shape, listed)
        for part, extent in zip(entry.slices, extents, strict=True):
            table[slice_key(key, extent)] = _entry(entry.dtype, part.shape, _stored(part, numbers))
    Path(f"{prefix}.index").write_bytes(write_table(sorted(table.items())))


def string_bytes(text: bytes) -> tuple[bytes, int]:
    """Returns how a string scalar lies in a data file, and the crc32c of its entry.

    The crc covers the length as a fixed-width integer where the file holds a varint.
    """
    fixed = struct.pack("<I" if len(text) < 1 << 32 else "<Q", len(text))
    of_length = struct.pack("<I", mask(google_crc32c.value(fixed)))
    return _varint(len(text)) + of_length + text, int(google_crc32c.value(fixed + of_length + text))


def mask(crc: int) -> int:
    """Returns a crc32c in the form that LevelDB and TensorFlow store: the inverse of `sstable.unmask`."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def write_table(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Returns a sorted string table of (key, value) pairs whose keys rise strictly: the inverse of `read_table`."""
    out = bytearray()
    handles: list[tuple[bytes, bytes]] = []
    block: list[tuple[bytes, bytes]] = []
    size = 0
    for key, value in pairs:
        if size >= BLOCK_BYTES:
            handles.append((block[-1][0], _append(out, _block(block, RESTART_ENTRIES))))
            block, size = [], 0
        block.append((key, value))
        size += len(key) + len(value)
    if block:
        handles.append((block[-1][0], _append(out, _block(block, RESTART_ENTRIES))))
    metaindex = _append(out, _block([], 1))
    index = _append(out, _block(handles, 1))
    footer = (metaindex + index).ljust(FOOTER_BYTES - len(MAGIC), b"\0") + MAGIC
    return bytes(out) + footer


def _append(out: bytearray, block: bytes) -> bytes:
    """Appends a block with its trailer; returns its handle."""
    handle = _varint(len(out)) + _varint(len(block))
    kind = b"\0"  # not compressed
    out += block + kind + struct.pack("<I", mask(google_crc32c.value(block + kind)))
    return handle


def _block(pairs: Sequence[tuple[bytes, bytes]], restart_entries: int) -> bytes:
    out, restarts, previous = bytearray(), [], b""
    for place, (key, value) in enumerate(pairs):
        shared = 0
        if place % restart_entries == 0:
            restarts.append(len(out))
        else:
            longest = min(len(previous), len(key))
            while shared < longest and previous[shared] == key[shared]:
                shared += 1
        out += _varint(shared) + _varint(len(key) - shared) + _varint(len(value)) + key[shared:] + value
        previous = key
    restarts = restarts or [0]
    return bytes(out) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def _entry(dtype: str, shape: tuple[int, ...], rest: bytes) -> bytes:
    if dtype not in _DTYPE_NUMBERS:
        raise ValueError(f"{dtype} is no dtype of an index")
    sizes = b"".join(_field(2, BYTES, _field(1, VARINT, size)) for size in shape)
    return _field(1, VARINT, _DTYPE_NUMBERS[dtype]) + _tagged(2, BYTES, _varint(len(sizes)) + sizes) + rest


def _stored(part: Slice, numbers: Mapping[str, int]) -> bytes:
    if part.crc32c is None or part.file not in numbers:
        raise ValueError(f"bytes {part.offset} of {part.file} have no crc32c, or the file is none of the checkpoint's")
    return (
        _field(3, VARINT, numbers[part.file])
        + _field(4, VARINT, part.offset)
        + _field(5, VARINT, part.bytes)
        + _tagged(6, FIXED32, struct.pack("<I", mask(part.crc32c)))
    )


def _slice(extents: Sequence[tuple[int, int]]) -> bytes:
    """Encodes a TensorSliceProto; a length is told even where it is 0, as it would mean the whole axis else."""
    return b"".join(
        _field(1, BYTES, _field(1, VARINT, start) + _tagged(2, VARINT, _varint(length))) for start, length in extents
    )


def _field(number: int, kind: int, value: int | bytes) -> bytes:
    """Encodes one field; an integer of 0 is left out, as proto3 does."""
    if isinstance(value, bytes):
        return _tagged(number, kind, _varint(len(value)) + value)
    return _tagged(number, kind, _varint(value)) if value else b""


def _tagged(number: int, kind: int, payload: bytes) -> bytes:
    return bytes([number << 3 | kind]) + payload


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
