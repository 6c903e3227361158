"""Decodes a chunk of a zarr array piece by piece: a device's shard of a table is one chunk, whatever its size.

That works where rows lie in a chunk one after the other and are not compressed, or as one stream (zstd, Orbax' default;
gzip). tensorstore finds the chunk, its compressed bytes are read a range at a time, and decompressed as they come.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from export.errors import CheckpointError

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

READ_BYTES = 1 << 20
_STREAMS = ("zstd", "gzip")
_INDEX_ENTRY = struct.Struct("<QQ")
_CRC_BYTES = 4
_NO_CHUNK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class PieceFormat:
    """How the bytes of a chunk are found and decoded.

    Attributes:
      codec: of its bytes; None: as they are.
      rows: of a chunk.
      in_shard: chunks in one stored value, zarr 3's shard; 0: a chunk is a value.
      first_key, separator, zeros: parts of its key: what comes before its number, and after it, once for each axis.
    """

    codec: str | None
    rows: int
    in_shard: int
    first_key: str
    separator: str
    zeros: int

    def key(self, chunk: int) -> str:
        """Returns the key of the value that holds a chunk, counted from the first."""
        number = chunk // max(1, self.in_shard)
        return f"{self.first_key}{number}" + f"{self.separator}0" * self.zeros


def piece_format(metadata: dict[str, Any]) -> PieceFormat | None:
    """Returns how chunks of a zarr array can be decoded piece by piece; None: they cannot.

    Args:
      metadata: the array's `.zarray` or `zarr.json`.
    Source: zarr specifications, version 2; version 3 with codecs bytes, zstd, gzip and sharding_indexed.
    """
    found = _version_2(metadata) if metadata.get("zarr_format") == 2 else _version_3(metadata)
    return found if found is not None and found.codec in (None, *_STREAMS) else None


def _version_2(metadata: dict[str, Any]) -> PieceFormat | None:
    shape, chunk = metadata["shape"], metadata["chunks"]
    big_endian = str(metadata["dtype"]).startswith(">")
    if (
        not shape
        or big_endian
        or chunk[1:] != shape[1:]
        or metadata["order"] != "C"
        or metadata.get("filters")
    ):
        return None
    codec = (metadata.get("compressor") or {}).get("id")
    return PieceFormat(
        codec, chunk[0], 0, "", metadata.get("dimension_separator", "."), len(shape) - 1
    )


def _version_3(metadata: dict[str, Any]) -> PieceFormat | None:
    shape, codecs = metadata["shape"], metadata["codecs"]
    chunk = metadata["chunk_grid"]["configuration"]["chunk_shape"]
    in_shard = 0
    if len(codecs) == 1 and codecs[0]["name"] == "sharding_indexed":
        sharding = codecs[0]["configuration"]
        index = [codec["name"] for codec in sharding["index_codecs"]]
        if index != ["bytes", "crc32c"] or sharding.get("index_location", "end") != "end":
            return None
        outer, chunk, codecs = chunk, sharding["chunk_shape"], sharding["codecs"]
        if outer[1:] != chunk[1:]:
            return None
        in_shard = outer[0] // chunk[0] if chunk else 0
    if (
        not shape
        or chunk[1:] != shape[1:]
        or not codecs
        or codecs[0]["name"] != "bytes"
        or len(codecs) > 2
    ):
        return None
    if codecs[0].get("configuration", {}).get("endian", "little") != "little":
        return None
    encoding = metadata["chunk_key_encoding"]
    default = encoding["name"] == "default"
    separator = encoding.get("configuration", {}).get("separator", "/" if default else ".")
    codec = codecs[1]["name"] if len(codecs) == 2 else None
    return PieceFormat(
        codec, chunk[0], in_shard, f"c{separator}" if default else "", separator, len(shape) - 1
    )


class ChunkPieces:
    """The chunks of one array."""

    def __init__(self, kvstore: Any, form: PieceFormat, row_bytes: int) -> None:
        """Takes an open tensorstore.KvStore at the array's path."""
        self._kvstore, self._form, self._row_bytes = kvstore, form, row_bytes

    def blocks(self, chunk: int, low: int, high: int, bytes_max: int) -> Iterator[Bytes] | None:
        """Returns what yields rows [low, high) of a chunk, [n, row_bytes] at a time; None: it was not stored.

        Raises:
          CheckpointError: (while it is read) the chunk is cut short or damaged.
        """
        key = self._form.key(chunk)
        if self._kvstore.read(key, byte_range=slice(0, 0)).result().state == "missing":
            return None
        start, end = self._shard_range(key, chunk) if self._form.in_shard else (0, None)
        return None if start == _NO_CHUNK else self._decoded(key, start, end, low, high, bytes_max)

    def _decoded(
        self, key: str, start: int, end: int | None, low: int, high: int, bytes_max: int
    ) -> Iterator[Bytes]:
        import pyarrow  # 20 MiB that no other table needs

        stream = pyarrow.PythonFile(_Stored(self._kvstore, key, start, end), "r")
        if self._form.codec is not None:
            stream = pyarrow.CompressedInputStream(stream, self._form.codec)
        step = max(1, bytes_max // self._row_bytes)
        try:
            with stream:
                for row in [*range(0, low, step), *range(low, high, step)]:
                    wanted = row >= low
                    count = min(step, (high if wanted else low) - row) * self._row_bytes
                    data = stream.read(count)
                    if len(data) != count:
                        raise EOFError("its bytes end early")
                    if wanted:
                        yield np.frombuffer(data, np.uint8).reshape(-1, self._row_bytes)
        except (OSError, EOFError, ValueError) as problem:
            raise CheckpointError(
                f"chunk {key!r} is damaged: {problem}; copy the checkpoint anew"
            ) from problem

    def _shard_range(self, key: str, chunk: int) -> tuple[int, int]:
        """Returns where a chunk lies in a shard, by the index at the shard's end."""
        count = self._form.in_shard
        back = (count - chunk % count) * _INDEX_ENTRY.size + _CRC_BYTES
        entry = self._kvstore.read(key, byte_range=slice(-back, None)).result().value
        offset, length = _INDEX_ENTRY.unpack_from(entry)
        return (_NO_CHUNK, 0) if offset == _NO_CHUNK else (offset, offset + length)


class _Stored(io.RawIOBase):
    """Bytes of a stored value, from `start` to `end` or, where that is None, to its own end, read as a file."""

    def __init__(self, kvstore: Any, key: str, start: int, end: int | None) -> None:
        super().__init__()
        self._kvstore, self._key, self._at, self._end = kvstore, key, start, end

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        end = self._at + (READ_BYTES if size < 0 else size)
        data = self._part(end if self._end is None else min(self._end, end))
        self._at += len(data)
        return data

    def _part(self, end: int | None) -> bytes:
        try:
            data: bytes = (
                self._kvstore.read(self._key, byte_range=slice(self._at, end)).result().value
            )
        except ValueError:  # the value ends before: tensorstore tells its size in no other way
            if end is None or self._end is not None:
                raise
            return self._part(None)
        return data
