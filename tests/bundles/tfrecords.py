"""TFRecord files, written by the rule of the format."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

import google_crc32c

from bundle.format.checksums import mask


def record(data: bytes) -> bytes:
    """Frames the bytes of a record."""
    length = struct.pack("<Q", len(data))
    return length + masked(length) + data + masked(data)


def masked(data: bytes) -> bytes:
    """Returns the masked crc32c of some bytes, as it is stored."""
    return struct.pack("<I", mask(google_crc32c.value(data)))


def write_records(path: Path, records: Iterable[bytes]) -> Path:
    """Writes a file, and its directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(map(record, records)))
    return path
