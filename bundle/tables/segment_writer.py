"""Writes files of rows."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bundle.format.checksums import Digest, UnorderedDigest, contiguous
from bundle.storage import files

if TYPE_CHECKING:
    from bundle.format.checksums import Bytes

SYNC_BYTES = 16 << 20
"""The bytes that are written between two requests to flush: the disk never idles for long, and
requests are rare.
"""
_WRITE_BYTES = 128 << 10
"""Bytes of one request to write. For longer ones, Linux (since 6.16, on ext4) takes folios as large
from the page cache, which costs 2 to 4 times as much CPU in a virtual machine.
"""


class SegmentWriter:
    """Writes one file of rows and digests it in the same pass; the file appears under its name once
    it is whole.

    Used as a context: left by an exception, it removes the unfinished file. No two writers ever
    share a file that is being written, so one that is thought dead and writes on does no harm.

    With an offset, it fills its own range of a file that is there, which keeps its name and which
    it never removes: several writers fill a file that a reader wants in one piece.
    """

    def __init__(
        self,
        path: Path,
        attempts: Path | None = None,
        size: int | None = None,
        offset: int | None = None,
    ) -> None:
        """Begins a file, or a range of one.

        Args:
          path: The path of the file; its directory is made.
          attempts: The directory on the same disk where the file lies until it is whole. None: It
            lies beside `path`.
          size: The size of the file, where its bytes come in any order. None: They come in order.
          offset: The first byte of the range in an existing file. None: A new file begins.

        Raises:
          OSError: The file cannot be written, or `attempts` is gone, as when the run that needs the
            file is over.
        """
        self._path = path
        self._start = offset or 0
        self._attempt: Path | None = None
        # A random name: a writer that is thought dead may still write under the one before.
        if offset is None:
            if attempts is None:
                path.parent.mkdir(parents=True, exist_ok=True)
            self._attempt = (attempts or path.parent) / f".{path.name}-{secrets.token_hex(8)}"
            self._file = self._attempt.open("xb", buffering=0)
        else:
            self._file = path.open("r+b", buffering=0)
        self._digest = Digest()
        self._unordered: UnorderedDigest | None = None
        if size is not None:
            self._unordered = UnorderedDigest(size)
        self._written_bytes = 0

    @property
    def bytes(self) -> int:
        """The number of bytes that came in order so far."""
        return self._digest.bytes

    @property
    def crc32c(self) -> int:
        """The crc32c of the bytes that came in order so far."""
        return self._digest.crc32c

    @property
    def room_bytes(self) -> int:
        """The maximum number of bytes that `write` takes with their crc32c."""
        return self._digest.room_bytes

    def write(self, data: Bytes, crc32c: int | None = None) -> None:
        """Appends bytes.

        Args:
          data: The bytes.
          crc32c: The checksum of the bytes, where it is known already; they must not exceed
            `room_bytes`.

        Raises:
          OSError: The disk is full or broken; the file is unfinished.
        """
        piece = contiguous(data)
        offset = self._digest.bytes
        if crc32c is None:
            self._digest.update(piece)
        else:
            self._digest.append(crc32c, piece.size)
        self._put(offset, piece)
        if offset // SYNC_BYTES != self._digest.bytes // SYNC_BYTES:
            files.begin_sync(self._file.fileno())

    def write_at(self, offset: int, data: Bytes) -> None:
        """Writes bytes from `offset` on, in a file whose size was given; each byte once, in any
        order.

        Raises:
          OSError: The disk is full or broken; the file is unfinished.
        """
        piece = contiguous(data)
        if self._unordered is None:
            raise ValueError("the size of the file was not given")
        self._unordered.update_at(offset, piece)
        previous_bytes = self._written_bytes
        self._written_bytes += piece.size
        self._put(offset, piece)
        if previous_bytes // SYNC_BYTES != self._written_bytes // SYNC_BYTES:
            files.begin_sync(self._file.fileno())

    def close(self) -> Digest:
        """Syncs and closes the file, gives it its name and returns its digest: `crc32c`, `blocks`,
        `bytes`.
        """
        if self._file.closed:
            return self._digest
        if self._unordered is not None:
            self._digest = self._unordered.digest()
        os.fsync(self._file.fileno())
        self._file.close()

        # The name comes last, so that a file that has it is whole.
        if self._attempt is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._attempt.rename(self._path)
            files.sync(self._path.parent)
        return self._digest

    def _put(self, offset: int, data: NDArray[np.uint8]) -> None:
        """Writes bytes at an offset of the file."""
        unwritten = data.data
        position = self._start + offset
        while unwritten:
            # It may write less than it was given.
            count = os.pwrite(self._file.fileno(), unwritten[:_WRITE_BYTES], position)
            position += count
            unwritten = unwritten[count:]

    def __enter__(self) -> SegmentWriter:
        return self

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        if problem is None:
            self.close()
            return
        if self._attempt is not None:
            self._attempt.unlink(missing_ok=True)
            if self._file.closed:
                self._path.unlink(missing_ok=True)
        self._file.close()
