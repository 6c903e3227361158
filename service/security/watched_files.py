"""Files that are read again when they change. A change that cannot be used leaves the previous
content in effect.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from service.observability.logging import fields, logger

INTERVAL_S = 1.0
"""Pause between two checks of the files' state; requests make them, so they must be rare to cost
nothing.
"""

_log = logger(__name__)

Value = TypeVar("Value")


class WatchedFiles(Generic[Value]):
    """The current content of some files. Thread safe."""

    def __init__(self, files: Sequence[Path], read: Callable[[], Value], kind: str) -> None:
        """Reads the files.

        Args:
          files: all that `read` opens; links are followed, so a mounted secret can be replaced as a
            whole.
          read: returns their content; may raise OSError or ValueError.
          kind: of content, for the log.
        Raises:
          OSError: a file cannot be read.
          ValueError: a file has not the content expected.
        """
        self._files = files
        self._read = read
        self._kind = kind
        self._state = self._current_state()
        self._value = read()
        self._next_check = time.monotonic() + INTERVAL_S

    def value(self) -> Value:
        """Returns the content, at most INTERVAL_S old; logs the outcome of reading it again once a
        change.
        """
        if time.monotonic() >= self._next_check:
            self._next_check = time.monotonic() + INTERVAL_S
            state = self._current_state()
            known = self._state
            self._state = state  # before the files are read: a change meanwhile counts as another
            if state != known:
                what = {"kind": self._kind, "files": [str(file) for file in self._files]}
                try:
                    self._value = self._read()
                    _log.info("secrets_reloaded", extra=fields(**what))
                except (OSError, ValueError) as problem:
                    _log.error("secrets_unreadable", extra=fields(problem=str(problem), **what))
        return self._value

    def _current_state(self) -> list[tuple[int, ...] | None]:
        return [_state(file) for file in self._files]


def _state(file: Path) -> tuple[int, ...] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
