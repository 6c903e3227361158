"""Files that are read again once they change. What cannot be read leaves what was read before in use."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from service import logs

LOOK_S = 1.0
"""Least time between two looks at the files: a look is made by whoever asks, so it has to be rare to cost nothing."""
BYTES_MAX = 1 << 20
"""Of one file. What is larger holds no tokens and no certificates."""

_LOG = logs.logger(__name__)

Value = TypeVar("Value")
_Seen = tuple[tuple[int, int, int, int] | None, ...]


class FollowedFiles(Generic[Value]):
    """What some files say now. Threads may share one."""

    def __init__(
        self,
        files: Sequence[Path],
        read: Callable[[], Value],
        what: str,
        taken: Callable[[Value], None] = lambda _: None,
    ) -> None:
        """Reads the files.

        Args:
          files: all that `read` opens; links are followed, so that a mounted secret may be swapped as a whole.
          read: returns what they say; may raise OSError or ValueError.
          what: they hold, for the log.
          taken: called with what they say once they changed.

        Raises:
          OSError: one cannot be read.
          ValueError: one does not say what it should.
        """
        self._files, self._read, self._what, self._taken = tuple(files), read, what, taken
        self._lock = threading.Lock()
        self._seen = self._look()
        self._value = read()
        self._next_look = time.monotonic() + LOOK_S

    def now(self) -> Value:
        """Returns what the files say, as of at most LOOK_S ago."""
        if time.monotonic() >= self._next_look:
            self.follow()
        return self._value

    def follow(self, even_unchanged: bool = False) -> None:
        """Reads the files if they changed; says in the log what came of it, once for each change."""
        with self._lock:
            self._next_look = time.monotonic() + LOOK_S
            seen = self._look()
            if seen == self._seen and not even_unchanged:
                return
            self._seen = seen  # before they are read: a change meanwhile is one more
            told = {"what": self._what, "files": [str(file) for file in self._files]}
            try:
                self._value = self._read()
            except (OSError, ValueError) as problem:
                _LOG.error("secrets_unreadable", extra=logs.fields(problem=why(problem), **told))
            else:
                _LOG.info("secrets_read", extra=logs.fields(**told))
                self._taken(self._value)

    def _look(self) -> _Seen:
        return tuple(_state(file) for file in self._files)


def read_bounded(file: Path) -> bytes:
    """Returns a file's bytes.

    Raises:
      OSError: it cannot be read.
      ValueError: it has more than BYTES_MAX.
    """
    with file.open("rb") as stream:
        content = stream.read(BYTES_MAX + 1)
    if len(content) > BYTES_MAX:
        raise ValueError(f"{file} has more than {BYTES_MAX} bytes")
    return content


def why(problem: OSError | ValueError) -> str:
    """Returns what kept files from being read, in a sentence that names them."""
    if isinstance(problem, OSError) and problem.filename is not None:
        return f"{problem.filename}: {problem.strerror}"
    return str(problem)


def _state(file: Path) -> tuple[int, int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
