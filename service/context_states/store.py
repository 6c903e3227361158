"""Values of bytes in files, bounded in size, which all processes of a host may share.

A file is written aside and renamed, so that a reader finds all of it or nothing, and whoever opened
it may read on. Nothing is mapped and nothing is locked: a file that was cut or damaged is no value,
and a process that stops holds up no other. A store that cannot be written or read holds nothing.
"""

from __future__ import annotations

import os
import queue
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

from service.observability.logging import fields, logger

log = logger(__name__)

_DIRECTORIES = 64
"""The number of directories over which the files are spread, each with an equal share of the
size.
"""
_CHECKSUM_BYTES = 4
_WAITING_MAX = 16
"""The number of values that wait to be written; more are not stored."""
_WRITES_PER_SWEEP_MIN = 16
"""The number of files that a process writes into a directory before it looks at its size."""
_SWEPT_SHARE = 1 / 16
"""The same as a share of the files of the directory, where that is more: to look at all of them
takes time.
"""
_KEPT_SHARE = 0.9
"""The share of its size that a directory has after a sweep."""
_TOUCH_AFTER_S = 60.0
"""The age from which on the time of a file is set when it is read: the sweep removes the oldest."""


class ByteStore:
    """Values by keys of hexadecimal digits, in a directory."""

    def __init__(self, directory: Path, max_bytes: int, max_age_s: float) -> None:
        """Takes a directory, which is made with the first value.

        Args:
          directory: The directory.
          max_bytes: The size of all files, about.
          max_age_s: The seconds after which a value that nobody reads is removed.
        """
        self._directory = directory
        self._bytes_per_directory = max_bytes // _DIRECTORIES
        self._max_age_s = max_age_s
        self._writes_until_sweep: dict[str, int] = {}
        self._waiting: queue.Queue[Callable[[], None]] = queue.Queue(_WAITING_MAX)
        self._thread: threading.Thread | None = None
        self._is_reported = False

    def holds(self, size: int) -> bool:
        """Returns whether values of a size have a place: several of them in each directory."""
        return 4 * size <= self._bytes_per_directory

    def find(self, key: str, size: int) -> memoryview | None:
        """Returns a value; None: there is none of this size, or it is damaged."""
        path = self._path(key)
        try:
            # A pipe in the place of a file would hold up the request.
            with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
                content = memoryview(file.read(size + _CHECKSUM_BYTES + 1) or b"")
                age_s = time.time() - os.fstat(file.fileno()).st_mtime
            if age_s > _TOUCH_AFTER_S:
                os.utime(path)
        except FileNotFoundError:
            return None
        except OSError as problem:
            self._report(problem)
            return None
        value = content[:size]
        if age_s > self._max_age_s or _checksum(value) != content[size:]:
            return None
        return value

    def keep(self, key: str, pieces: Sequence[bytes]) -> bool:
        """Stores a value soon, in a thread of its own; returns whether there is time for it.

        Args:
          key: The key.
          pieces: The value, in pieces that nobody changes any more.
        """
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._write_waiting, name="context-states", daemon=True
            )
            self._thread.start()
        try:
            self._waiting.put_nowait(lambda: self._write(key, pieces))
        except queue.Full:
            return False
        return True

    def flush(self) -> None:
        """Returns when all values that waited are written."""
        self._waiting.join()

    def _path(self, key: str) -> Path:
        return self._directory / f"{int(key[:4], 16) % _DIRECTORIES:02d}" / key

    def _write_waiting(self) -> None:
        while True:
            write = self._waiting.get()
            try:
                write()
            except OSError as problem:
                self._report(problem)
            finally:
                self._waiting.task_done()

    def _write(self, key: str, pieces: Sequence[bytes]) -> None:
        content = b"".join(pieces)
        path = self._path(key)
        # Histories of people: nobody else on the host may read them.
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        aside = path.with_name(f"{key}.{os.getpid()}.{threading.get_ident()}")
        try:
            descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(descriptor, "wb") as file:
                file.write(content)
                file.write(_checksum(content))
            aside.rename(path)
        except OSError:
            aside.unlink(missing_ok=True)
            raise
        name = path.parent.name
        writes_left = self._writes_until_sweep.get(name, 0)
        if not writes_left:
            file_count = self._sweep(path.parent)
            writes_left = max(_WRITES_PER_SWEEP_MIN, int(_SWEPT_SHARE * file_count))
        self._writes_until_sweep[name] = writes_left - 1

    def _sweep(self, directory: Path) -> int:
        """Removes the files of a directory that are too old, and the oldest of those that are too
        many; returns how many there were.
        """
        found = []
        with os.scandir(directory) as entries:
            for entry in entries:
                try:
                    status = entry.stat()
                except FileNotFoundError:  # another process has swept
                    continue
                found.append((status.st_mtime, status.st_size, entry.path))
        found.sort()
        total = sum(size for _, size, _ in found)
        allowed = total
        if total > self._bytes_per_directory:
            allowed = int(_KEPT_SHARE * self._bytes_per_directory)
        expired_before = time.time() - self._max_age_s
        for changed_at, size, path in found:
            if total <= allowed and changed_at >= expired_before:
                break
            Path(path).unlink(missing_ok=True)
            total -= size
        return len(found)

    def _report(self, problem: OSError) -> None:
        """Logs the first failure: each request would repeat it."""
        if not self._is_reported:
            self._is_reported = True
            log.warning(
                "context_states_unusable",
                extra=fields(directory=str(self._directory), error=str(problem)),
            )


def _checksum(value: bytes | memoryview) -> bytes:
    return zlib.crc32(value).to_bytes(_CHECKSUM_BYTES, "little")
