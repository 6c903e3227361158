"""Writes checkpoints, an independent way: the format from its description, nothing from the reader
under test.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import ml_dtypes
import numpy as np

SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"
GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
DTYPE_NUMBERS = {
    np.dtype(kind): number
    for kind, number in {
        "f4": 1,
        "f8": 2,
        "i4": 3,
        "i8": 9,
        "f2": 19,
        "?": 10,
        ml_dtypes.bfloat16: 14,
    }.items()
}


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes(out + bytes([number]))


def field(number: int, value: int | bytes | str) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) % 2**32 + 0xA282EAD8) % 2**32


def block(pairs: Sequence[tuple[bytes, bytes]], *, interval: int = 16, kind: int = 0) -> bytes:
    """One block with its trailer, prefix-compressed between restart points."""
    out = bytearray()
    restarts = []
    previous = b""
    for count, (key, value) in enumerate(pairs):
        shared = 0
        if count % interval == 0:
            restarts.append(len(out))
        else:
            while shared < min(len(key), len(previous)) and key[shared] == previous[shared]:
                shared += 1
        out += (
            varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        )
        previous = key
    restarts = restarts or [0]
    out += b"".join(struct.pack("<I", offset) for offset in restarts) + struct.pack(
        "<I", len(restarts)
    )
    return sealed(bytes(out), kind)


def sealed(body: bytes, kind: int = 0) -> bytes:
    body += bytes([kind])
    return body + struct.pack("<I", masked(google_crc32c.value(body)))


def table(pairs: Iterable[tuple[bytes, bytes]], *, per_block: int = 50) -> bytes:
    """A sorted string table."""
    ordered = sorted(pairs)
    out = bytearray()
    handles = []
    for start in range(0, len(ordered), per_block):
        part = ordered[start : start + per_block]
        body = block(part)
        handles.append((part[-1][0], varint(len(out)) + varint(len(body) - 5)))
        out += body
    return joined(bytes(out), block(handles, interval=1))


def joined(blocks: bytes, index: bytes) -> bytes:
    """Blocks, an empty metaindex, the index block and the footer."""
    meta = block([])
    footer = (
        varint(len(blocks))
        + varint(len(meta) - 5)
        + varint(len(blocks) + len(meta))
        + varint(len(index) - 5)
    )
    return blocks + meta + index + footer.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)


def header(shards: int = 1, *, endianness: int = 0, min_consumer: int = 0) -> bytes:
    version = field(1, 1) + (field(2, min_consumer) if min_consumer else b"")
    return field(1, shards) + (field(2, endianness) if endianness else b"") + field(3, version)


def shape_proto(shape: Sequence[int]) -> bytes:
    return b"".join(field(2, field(1, size)) for size in shape)


def entry(
    dtype: int,
    shape: Sequence[int],
    offset: int,
    data: bytes | int,
    crc: int | None = None,
    shard: int = 0,
) -> bytes:
    """A BundleEntryProto; `data` may be the number of bytes if `crc` is given."""
    size = data if isinstance(data, int) else len(data)
    crc = google_crc32c.value(data) if crc is None and isinstance(data, bytes) else crc
    out = field(1, dtype) + field(2, shape_proto(shape))
    out += (field(3, shard) if shard else b"") + (field(4, offset) if offset else b"")
    return (
        out
        + (field(5, size) if size else b"")
        + varint(6 << 3 | 5)
        + struct.pack("<I", masked(crc or 0))
    )


def signed(number: int) -> bytes:
    """The order-preserving code of a signed number, by the bits: a leading 1 per byte, the sign,
    then the digits.
    """
    size = 1
    while not -(1 << 7 * size - 1) <= number < 1 << 7 * size - 1:
        size += 1
    bits = format(number % (1 << 8 * size), f"0{8 * size}b")
    marks = "".join(str(1 - int(bit)) for bit in bits[:size])
    return int(marks + bits[size:], 2).to_bytes(size, "big")


def slice_key(name: str, extents: Sequence[tuple[int, int]]) -> bytes:
    out = b"\0" + name.encode() + b"\0\1" + bytes([1, len(extents)])
    return out + b"".join(signed(start) + signed(length) for start, length in extents)


def slice_proto(extents: Sequence[tuple[int, int]]) -> bytes:
    return b"".join(
        field(1, (field(1, start) if start else b"") + (field(2, length) if length >= 0 else b""))
        for start, length in extents
    )


def text_data(text: bytes) -> tuple[bytes, int]:
    """A string scalar as stored, and its crc."""
    length = struct.pack("<I", len(text))
    check = struct.pack("<I", masked(google_crc32c.value(length)))
    return varint(len(text)) + check + text, google_crc32c.value(length + check + text)


Box = Sequence[tuple[int, int]]
"""Start and length on each axis; length -1: the whole axis, declared so."""


def write_bundle(
    prefix: Path,
    variables: Mapping[str, np.ndarray[Any, Any] | bytes],
    *,
    boxes: Mapping[str, Sequence[Box]] | None = None,
    files: int = 1,
    lead: bytes = b"\1",
) -> None:
    """Writes a checkpoint.

    Args:
      variables: Values by key; bytes are string scalars.
      boxes: The slices of variables to be cut, in the order in which they are written.
      files: The number of data files, filled in turn.
      lead: The number of bytes before the first value of each file, so that nothing is aligned.
    """
    pairs = [(b"", header(files))]
    data = [bytearray(lead) for _ in range(files)]
    turn = 0

    def place(
        key: bytes, dtype: int, shape: Sequence[int], stored: bytes, crc: int | None = None
    ) -> None:
        nonlocal turn
        shard = turn % files
        turn += 1
        crc = google_crc32c.value(stored) if crc is None else crc
        pairs.append((key, entry(dtype, shape, len(data[shard]), stored, crc, shard)))
        data[shard] += stored

    for key, value in variables.items():
        if isinstance(value, bytes):
            place(key.encode(), 7, (), *text_data(value))
        elif boxes and key in boxes:
            number = DTYPE_NUMBERS[value.dtype]
            slices = b"".join(field(7, slice_proto(box)) for box in boxes[key])
            pairs.append(
                (key.encode(), field(1, number) + field(2, shape_proto(value.shape)) + slices)
            )
            for box in boxes[key]:
                part = value[
                    tuple(
                        slice(start, None if length < 0 else start + length)
                        for start, length in box
                    )
                ]
                place(slice_key(key, box), number, part.shape, part.tobytes())
        else:
            place(key.encode(), DTYPE_NUMBERS[value.dtype], value.shape, value.tobytes())
    prefix.parent.mkdir(parents=True, exist_ok=True)
    for shard, content in enumerate(data):
        Path(f"{prefix}.data-{shard:05d}-of-{files:05d}").write_bytes(content)
    Path(f"{prefix}.index").write_bytes(table(pairs))


def node(
    children: Mapping[str, int] | None = None,
    key: str = "",
    full_name: str = "",
    slots: Sequence[tuple[int, str, int]] = (),
) -> bytes:
    """One node of an object graph."""
    out = b"".join(
        field(1, field(1, child) + field(2, name)) for name, child in (children or {}).items()
    )
    if key:
        out += field(2, field(1, "VARIABLE_VALUE") + field(2, full_name) + field(3, key))
    return out + b"".join(
        field(3, field(1, owner) + field(2, name) + field(3, state)) for owner, name, state in slots
    )


def object_graph(*nodes: bytes) -> bytes:
    return b"".join(field(1, node) for node in nodes)
