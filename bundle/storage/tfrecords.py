"""The records of TFRecord files, read without TensorFlow: every checksum is verified.

A record is its length (uint64), the masked crc32c of the length, its bytes, and their masked
crc32c, little-endian.
Source: TensorFlow 2.20, core/lib/io/record_reader.cc, core/lib/hash/crc32c.h (Mask).
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from bundle.errors import RecordDamaged
from bundle.format.checksums import crc32c, mask
from bundle.storage.regular_files import check_regular

RECORD_BYTES_MAX = 256 << 20
"""The maximum size of a record in bytes."""
READ_ERRORS = (OSError, EOFError, zlib.error)
"""The exceptions that reading a file raises, apart from RecordDamaged."""
_HEADER = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_READ_BYTES = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"


def read_records(path: Path, *, compressed: bool = False) -> Iterator[bytes]:
    """Yields the records of a file; one of them is in memory.

    Args:
      path: The path of the file.
      compressed: Whether the whole file is compressed with GZIP.

    Raises:
      RecordDamaged: A record is cut short, too large, or differs from its checksum.
      OSError, EOFError, zlib.error: The file cannot be read (`READ_ERRORS`).
    """
    number = 0
    with _opened(path, compressed) as file:
        while header := file.read(_HEADER.size):
            number += 1
            yield _read_record(file, header, number)


def framed(data: bytes) -> bytes:
    """Returns the bytes of a record as they lie in a file."""
    length = len(data).to_bytes(8, "little")
    header = _HEADER.pack(len(data), mask(crc32c(length)))
    return header + data + _CRC.pack(mask(crc32c(data)))


def _opened(path: Path, compressed: bool) -> BinaryIO | gzip.GzipFile:
    check_regular(path)
    if compressed:
        return gzip.open(path, "rb")
    return path.open("rb", buffering=_READ_BYTES)


def _read_record(file: BinaryIO | gzip.GzipFile, header: bytes, number: int) -> bytes:
    if len(header) < _HEADER.size:
        raise RecordDamaged(number, "is cut short in its length; copy the file again")
    length, crc = _HEADER.unpack(header)
    # Before the length is used: a damaged one could claim all the memory.
    if mask(crc32c(header[:8])) != crc:
        is_gzip = header.startswith(_GZIP_MAGIC)
        problem = "is no TFRecord: its length differs from its checksum"
        raise RecordDamaged(number, problem, is_gzip=is_gzip)
    if length > RECORD_BYTES_MAX:
        problem = f"claims {length} bytes; at most {RECORD_BYTES_MAX} are taken"
        raise RecordDamaged(number, problem)
    # In pieces: Python allocates the number of bytes to read, and the file may have fewer.
    pieces = []
    bytes_left = length
    while bytes_left and (piece := file.read(min(bytes_left, _READ_BYTES))):
        pieces.append(piece)
        bytes_left -= len(piece)
    data = b"".join(pieces)
    tail = file.read(_CRC.size)
    if len(data) < length or len(tail) < _CRC.size:
        raise RecordDamaged(number, "is cut short; copy the file again")
    if mask(crc32c(data)) != _CRC.unpack(tail)[0]:
        raise RecordDamaged(number, "differs from its checksum; copy the file again")
    return data
