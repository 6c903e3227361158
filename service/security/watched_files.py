"""Files that are read again when they change. A change that cannot be used leaves the previous content in effect."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from service.observability.logging import fields, logger

INTERVAL_S = 1.0
"""Pause between two checks of the files' state; requests make them, so they must be rare to cost nothing."""
MAX_FILE_BYTES = 1 << 20

_log = logger(__name__)

Value = TypeVar("Value")


class WatchedFiles(Generic[Value]):
    """The current content of some files. Thread safe."""

    def __init__(
        self,
        files: Sequence[Path],
        read: Callable[[], Value],
        kind: str,
        reloaded: Callable[[Value], None] = lambda _: None,
    ) -> None:
        """Reads the files.

        Args:
          files: all that `read` opens; links are followed, so a mounted secret can be replaced as a whole.
          read: returns their content; may raise OSError or ValueError.
          kind: of content, for the log.
          reloaded: called with new content.
        Raises:
          OSError: a file cannot be read.
          ValueError: a file has not the content expected.
        """
        self._files, self._read, self._kind, self._reloaded = tuple(files), read, kind, reloaded
        self._lock = threading.Lock()
        self._state = self._current_state()
        self._value = read()
        self._next_check = time.monotonic() + INTERVAL_S

    def value(self) -> Value:
        """Returns the content, at most INTERVAL_S old."""
        if time.monotonic() >= self._next_check:
            self.reload(force=False)
        return self._value

    def reload(self, force: bool = True) -> None:
        """Reads the files again; logs the outcome once a change.

        Args:
          force: also if they are unchanged.
        """
        with self._lock:
            self._next_check = time.monotonic() + INTERVAL_S
            state = self._current_state()
            if state == self._state and not force:
                return
            self._state = state  # before the files are read: a change meanwhile counts as another
            what = {"kind": self._kind, "files": [str(file) for file in self._files]}
            try:
                self._value = self._read()
            except (OSError, ValueError) as problem:
                _log.error("secrets_unreadable", extra=fields(problem=reason(problem), **what))
            else:
                _log.info("secrets_reloaded", extra=fields(**what))
                self._reloaded(self._value)

    def _current_state(self) -> tuple[object, ...]:
        return tuple(_state(file) for file in self._files)


def read_bounded(file: Path) -> bytes:
    """Returns the content of a file.

    Raises:
      OSError: it cannot be read.
      ValueError: it is larger than MAX_FILE_BYTES.
    """
    with file.open("rb") as stream:
        content = stream.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(f"{file} has more than {MAX_FILE_BYTES} bytes")
    return content


def reason(problem: OSError | ValueError) -> str:
    """Returns why files could not be read, in a sentence that names them."""
    if isinstance(problem, OSError) and problem.filename is not None:
        return f"{problem.filename}: {problem.strerror}"
    return str(problem)


def _state(file: Path) -> tuple[int, int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
