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
"""Time between two checks of the files' state. Requests make the checks, so they must be rare to
cost nothing.
"""

_log = logger(__name__)

Value = TypeVar("Value")


class WatchedFiles(Generic[Value]):
    """The current content of some files. Thread safe."""

    def __init__(self, files: Sequence[Path], read: Callable[[], Value], kind: str) -> None:
        """Reads the files.

        Args:
          files: All files that `read` opens. Links are followed, so that a mounted secret can be
            replaced as a whole.
          read: Returns their content; may raise OSError or ValueError.
          kind: The kind of content, for the log.

        Raises:
          OSError: A file cannot be read.
          ValueError: A file does not have the expected content.
        """
        self._files = files
        self._read = read
        self._kind = kind
        self._state = self._current_state()
        self._value = read()
        self._next_check = time.monotonic() + INTERVAL_S

    def value(self) -> Value:
        """Returns the content, at most INTERVAL_S old.

        A change of the files is read once, and logged, whether it can be used or not.
        """
        if time.monotonic() >= self._next_check:
            self._next_check = time.monotonic() + INTERVAL_S
            state = self._current_state()
            last_state = self._state
            # Set before the files are read, so that a change meanwhile counts as another change.
            self._state = state
            if state != last_state:
                about = {"kind": self._kind, "files": [str(file) for file in self._files]}
                try:
                    self._value = self._read()
                    _log.info("secrets_reloaded", extra=fields(**about))
                except (OSError, ValueError) as problem:
                    _log.error("secrets_unreadable", extra=fields(problem=str(problem), **about))
        return self._value

    def _current_state(self) -> list[tuple[int, ...] | None]:
        return [_state(file) for file in self._files]


def _state(file: Path) -> tuple[int, ...] | None:
    try:
        status = file.stat()
    except OSError:
        # A file that is away for a moment is a state, too: its return is a change.
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
