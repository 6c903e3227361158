"""The desired state on disk: one JSON file that every process of the service reads; written aside,
then renamed. A symbolic link is followed.

A file that cannot be read changes nothing in a running service. A service that starts with one
loads nothing and reports why: it cannot know which versions it must not serve.
"""

from __future__ import annotations

import fcntl
import math
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import orjson
from pydantic import ValidationError

from bundle.storage.output_file import OutputFile, OutputRejected
from service.config import ServiceSettings
from service.errors import DeadlineExceeded, FieldViolation, NotReady, TooLarge
from service.versions.desired_state import Desired, first_error

NAME = ".rowcast-state.json"
"""The file under the root, unless a setting names another path; no model can have this name."""
BYTES_MAX = 64 << 20
"""Maximum size of the file, which every process holds. Two deny lists of the maximum number of ids,
each of the maximum length, fit.
"""

_PAUSE_MIN_S = 0.001
_PAUSE_MAX_S = 0.05
_PAUSE_SHARE = 10
"""A pause is the time waited so far divided by this: a wait lasts a tenth longer than it must."""


class StateUnreadable(Exception):
    """The file exists, or may exist, but cannot be read; the message says why."""


class StateFile:
    """The file of one service's desired state, and what could last be read of it.

    Attributes:
      path: The path of the file.
      desired: The desired state as last refreshed; None: it could not be read since the start.
      problem: Why it could not be read then; empty: it could.
    """

    def __init__(self, path: Path) -> None:
        """Creates the reader and writer of a file, which need not exist."""
        self.path = path
        self.desired: Desired | None = None
        self.problem = ""
        self._content: bytes | None = None

    @classmethod
    def of(cls, settings: ServiceSettings) -> StateFile:
        """Returns the file that the settings name."""
        return cls(settings.state_file or settings.root / NAME)

    def refresh(self) -> bool:
        """Reads the file if it has changed; returns whether `desired` or `problem` did."""
        before = self.desired, self.problem
        try:
            content = self._read()
            # Read ten times per second: a deny list takes too long to parse each time.
            if self.desired is None or content != self._content:
                self.desired = self._parse(content)
                self._content = content
            self.problem = ""
        except StateUnreadable as problem:
            # A directory that is gone is mostly the root itself, which is reported as such.
            if self.desired is None or self.path.parent.is_dir():
                self.problem = str(problem)
        return (self.desired, self.problem) != before

    def read(self) -> Desired:
        """Returns the desired state; without a file, the default.

        Raises:
          StateUnreadable: The file cannot be read, or has invalid contents.
        """
        return self._parse(self._read())

    def _read(self) -> bytes | None:
        """Returns the content of the file; None: there is no file."""
        try:
            # To read a pipe would never end.
            if not stat.S_ISREG(self.path.stat().st_mode):
                raise StateUnreadable(f"state file {self.path} is not a regular file")
            with self.path.open("rb") as file:
                content = file.read(BYTES_MAX + 1)
        except FileNotFoundError:
            # Without a file nothing is desired. Without its directory, which may be mounted later,
            # nobody knows.
            if self.path.parent.is_dir():
                return None
            raise StateUnreadable(
                f"the directory of state file {self.path} does not exist"
            ) from None
        except OSError as problem:
            raise StateUnreadable(
                f"state file {self.path} cannot be read: {problem.strerror}"
            ) from problem
        if len(content) > BYTES_MAX:
            raise StateUnreadable(f"state file {self.path} is larger than {BYTES_MAX} bytes")
        return content

    def _parse(self, content: bytes | None) -> Desired:
        if content is None:
            return Desired()
        try:
            return Desired.model_validate_json(content)
        except ValidationError as problem:
            raise StateUnreadable(
                f"state file {self.path} is damaged, or of another product version: "
                f"{first_error(Desired, problem)}; repair it, or remove it to serve the newest "
                "versions"
            ) from problem

    def update(self, edit: Callable[[Desired], Desired], deadline: float = math.inf) -> Desired:
        """Changes the desired state; when this returns, all of the change is on disk.

        Args:
          edit: Takes the desired state until now, and returns the new one.
          deadline: The time until which another process is waited for, on the clock of
            `time.monotonic()`.

        Returns:
          The new desired state.

        Raises:
          DeadlineExceeded: Another process has held the lock of the file until the deadline.
          NotReady: The file cannot be read or written.
          TooLarge: It would be larger than can be read.
          Exception: Whatever `edit` raises; nothing is changed.
        """
        try:
            # Follows a symbolic link: the file that it names is replaced, not the link.
            output = OutputFile(self.path)
            with open(f"{output.path}.lock", "ab", opener=_open_private) as lock:
                _lock(lock, deadline)
                # Read under the lock: another process may have written since the last refresh.
                before = self.read()
                desired = edit(before)
                if desired == before:
                    return before

                desired = desired.model_copy(update={"revision": before.revision + 1})
                document = desired.model_dump(mode="json")
                # Indented, since operators read it, too.
                content = orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n"
                if len(content) > BYTES_MAX:
                    message = (
                        f"the state file would have {len(content)} bytes; at most {BYTES_MAX} are "
                        "accepted"
                    )
                    expected = f"at most {BYTES_MAX} bytes"
                    violation = FieldViolation("state", f"{len(content)} bytes", expected)
                    raise TooLarge(message, violation)
                output.write(content)
                return desired
        except (StateUnreadable, OutputRejected) as problem:
            raise NotReady(str(problem)) from problem
        except OSError as problem:
            reason = f"{problem.strerror or problem}; --state-file names another path"
            raise NotReady(f"state file {self.path} cannot be written: {reason}") from problem


def _lock(file: IO[bytes], deadline: float) -> None:
    """Locks a file, which is unlocked when it is closed.

    Raises:
      DeadlineExceeded: Another process has held the lock until the deadline.
    """
    for _ in _attempts(deadline):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        except OSError:  # a file system without locks
            return
        return
    raise DeadlineExceeded(f"another process holds the lock {file.name}; nothing was changed")


def _open_private(path: str, flags: int) -> int:
    """Opens a file; a new one is readable by its owner alone."""
    return os.open(path, flags, 0o600)


def _attempts(deadline: float) -> Iterator[None]:
    """Yields once, and again after growing pauses until a monotonic time has passed."""
    began = time.monotonic()
    while True:
        yield
        now = time.monotonic()
        if now >= deadline:
            return
        pause_s = min(max((now - began) / _PAUSE_SHARE, _PAUSE_MIN_S), _PAUSE_MAX_S)
        time.sleep(min(pause_s, deadline - now))
