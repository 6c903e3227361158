"""A file of changed rows of one table, which several processes map.

    magic       8 bytes
    header      length (uint32), crc32c (uint32), JSON of `length` bytes; zeros up to byte 4096
    rows        [count] int64, ascending
    vectors     [count, dim] of the table's dtype
    scales      [count] float32, of int8 alone

All is little-endian. The header has the crc32c of what follows byte 4096.
"""

from __future__ import annotations

import os
import secrets
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from bundle.errors import DigestMismatch, FormatError
from bundle.format.checksums import crc32c, extend
from bundle.format.dtypes import SCALE_BYTES, STORED, narrowed, row_bytes, widened
from bundle.format.fields import Count, Crc32c, Positive, StrictModel
from bundle.format.tables import TableDtype
from bundle.storage import files

Rows = NDArray[np.int64]
Vectors = NDArray[np.float32]

MAGIC = b"rowcastR"
HEADER_BYTES = 4096
_PREFIX = struct.Struct("<8sII")
_CHUNK_ROWS = 16_384
"""The number of rows that are written at a time: 4 MiB of 64 values."""
_CHUNK_BYTES = 4 << 20
"""The number of bytes that are read at a time."""


class RowFileHeader(StrictModel):
    """What a file holds.

    Attributes:
      table: The name of the table.
      dtype: The dtype of the table.
      dim: The number of values of a row.
      count: The number of rows in the file.
      crc32c: The checksum of all bytes behind the header.
    """

    table: str
    dtype: TableDtype
    dim: Positive
    count: Count
    crc32c: Crc32c


class RowFile:
    """Changed rows in a file, mapped. Safe for any number of threads.

    Attributes:
      header: What the file holds.
      rows: [count] int64, ascending and distinct.
      bytes: The size of the file.
      inode: The number of the file, which differs from that of a file that replaces it.
    """

    def __init__(self, path: Path) -> None:
        """Maps a file and verifies all of it.

        Args:
          path: The file.

        Raises:
          FileNotFoundError: It does not exist.
          FormatError: It is no file of changed rows.
          DigestMismatch: It is damaged or cut short.
          OSError: It cannot be read.
        """
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            self.header = _read_header(path, file.read(HEADER_BYTES))
            self.inode = status.st_ino
            self.bytes = status.st_size
            expected = _file_bytes(self.header)
            if self.bytes != expected:
                raise DigestMismatch(
                    f"file {path.name!r} has {self.bytes} bytes; {expected} were expected"
                )
            whole: NDArray[np.uint8] = np.memmap(file, np.uint8, "r", HEADER_BYTES)
        # All of it, chunk by chunk, which bounds the memory for it.
        digest = 0
        for start in range(0, whole.size, _CHUNK_BYTES):
            digest = extend(digest, whole[start : start + _CHUNK_BYTES])
        if digest != self.header.crc32c:
            raise DigestMismatch(f"file {path.name!r} does not match its checksum")

        # Views of the map, one behind the other.
        dtype = self.header.dtype
        count = self.header.count
        rows_end = count * 8
        vectors_end = rows_end + count * row_bytes(dtype, self.header.dim)
        self.rows: Rows = np.asarray(whole[:rows_end].view("<i8"))
        vectors = np.asarray(whole[rows_end:vectors_end].view(STORED[dtype]))
        self._vectors = vectors.reshape(count, self.header.dim)
        self._scales: Vectors | None = None
        if dtype == "int8":
            self._scales = np.asarray(whole[vectors_end:].view("<f4"))

    def vectors(self, positions: NDArray[np.integer]) -> Vectors:
        """Returns the vectors of some of `rows`, [n, dim] float32.

        Args:
          positions: [n], of `rows`.
        """
        scales = None
        if self._scales is not None:
            scales = self._scales.take(positions)
        return widened(self._vectors.take(positions, axis=0), self.header.dtype, scales)


def write_row_file(
    path: Path,
    table: str,
    dtype: TableDtype,
    rows: Rows,
    dim: int,
    vectors_of: Callable[[Rows], Vectors],
) -> None:
    """Writes a file of changed rows, which appears under its name once it is whole and on the disk.

    Args:
      path: The file; it replaces one that is there.
      table: The name of the table.
      dtype: The dtype of the table.
      rows: [count] int64, ascending and distinct.
      dim: The number of values of a row.
      vectors_of: Returns the vectors of some of the rows, as the table stores them.

    Raises:
      OSError: The disk is full or broken; nothing has changed.
    """
    attempt = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        with os.fdopen(files.open_private(attempt, os.O_WRONLY | os.O_EXCL), "wb") as file:
            # Room for the header, which has the checksum of what follows it.
            file.write(bytes(HEADER_BYTES))
            digest = 0
            for chunk in _chunks(rows, dtype, vectors_of):
                digest = extend(digest, chunk)
                file.write(chunk.data)
            header = RowFileHeader(
                table=table, dtype=dtype, dim=dim, count=rows.size, crc32c=digest
            )
            content = header.model_dump_json().encode()
            file.seek(0)
            file.write(_PREFIX.pack(MAGIC, len(content), crc32c(content)) + content)
            file.flush()
            os.fsync(file.fileno())
        attempt.rename(path)
        files.sync(path.parent)
    finally:
        attempt.unlink(missing_ok=True)


def _chunks(
    rows: Rows, dtype: TableDtype, vectors_of: Callable[[Rows], Vectors]
) -> Iterator[NDArray[np.uint8]]:
    """Yields the bytes behind the header."""
    yield np.ascontiguousarray(rows, "<i8").view(np.uint8)
    # Scales follow all vectors: they are small enough to wait in memory.
    all_scales = []
    for start in range(0, rows.size, _CHUNK_ROWS):
        stored, scales = narrowed(vectors_of(rows[start : start + _CHUNK_ROWS]), dtype)
        all_scales.append(scales)
        yield np.ascontiguousarray(stored, STORED[dtype]).reshape(-1).view(np.uint8)
    for scales in all_scales:
        if scales is not None:
            yield np.ascontiguousarray(scales, "<f4").view(np.uint8)


def _read_header(path: Path, content: bytes) -> RowFileHeader:
    if len(content) < HEADER_BYTES or not content.startswith(MAGIC):
        raise FormatError(f"file {path.name!r} holds no changed rows that this release reads")
    _, length, digest = _PREFIX.unpack_from(content)
    header = content[_PREFIX.size : _PREFIX.size + length]
    if crc32c(header) != digest:
        raise DigestMismatch(f"the header of file {path.name!r} does not match its checksum")
    try:
        return RowFileHeader.model_validate_json(header)
    except ValidationError as problem:
        raise FormatError(
            f"file {path.name!r} holds no changed rows that this release reads: {problem}"
        ) from problem


def _file_bytes(header: RowFileHeader) -> int:
    # The number of a row and its values.
    bytes_per_row = 8 + row_bytes(header.dtype, header.dim)
    if header.dtype == "int8":
        bytes_per_row += SCALE_BYTES
    return HEADER_BYTES + header.count * bytes_per_row
