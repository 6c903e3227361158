"""The desired state on disk: one JSON file that every process of the service reads; written aside, then renamed.

A file that cannot be read changes nothing in a running service. A service that starts with one loads nothing and says
why: it cannot know which versions it must not serve.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
from pydantic import ValidationError

from bundle import files
from service.errors import NotReady, Unimplemented
from service.models.desired_state import Desired, first_error

NAME = ".rowcast-state.json"
"""Under the root, unless a setting names another path; no model can have this name."""
BYTES_MAX = 4 << 20

Stamp = tuple[int, int, int]
"""Identifies one state of a file: modification time (ns), bytes, inode."""


class StateUnreadable(Exception):
    """The file exists, or may exist, but cannot be read; the message says why."""


class StateFile:
    """The file of one service's desired state."""

    def __init__(self, path: Path) -> None:
        """Names the file, which need not exist."""
        self.path = path

    def stamp(self) -> Stamp | None:
        """Returns the stamp of the file; None: there is no file.

        Raises:
          StateUnreadable: its status cannot be read, or its directory is gone.
        """
        try:
            found = self.path.stat()
        except FileNotFoundError:
            if self.path.parent.is_dir():
                return None
            raise StateUnreadable(f"the directory of state file {self.path} does not exist") from None
        except OSError as problem:
            raise StateUnreadable(f"state file {self.path} cannot be read: {problem.strerror}") from problem
        if not stat.S_ISREG(found.st_mode):  # reading a pipe would never end
            raise StateUnreadable(f"state file {self.path} is not a regular file")
        return found.st_mtime_ns, found.st_size, found.st_ino

    def read(self) -> Desired:
        """Returns the desired state; without a file, the default.

        Raises:
          StateUnreadable: the file cannot be read, or has invalid contents.
        """
        stamp = self.stamp()
        if stamp is None:
            return Desired()
        if stamp[1] > BYTES_MAX:
            raise StateUnreadable(f"state file {self.path} is larger than {BYTES_MAX} bytes")
        try:
            return Desired.model_validate_json(self.path.read_bytes())
        except OSError as problem:
            raise StateUnreadable(f"state file {self.path} cannot be read: {problem.strerror}") from problem
        except ValidationError as problem:
            raise StateUnreadable(
                f"state file {self.path} is damaged, or of another product version: {first_error(problem)}; repair "
                "it, or remove it to serve the newest versions"
            ) from problem

    def update(self, edit: Callable[[Desired], Desired]) -> Desired:
        """Changes the desired state; when this returns, all of the change is on disk.

        Args:
          edit: returns the new desired state, given the one until now.
        Returns:
          The new desired state.
        Raises:
          NotReady: the file cannot be read or written now.
          Unimplemented: it can never be written where it is.
          Exception: whatever `edit` raises; nothing is changed.
        """
        try:
            with self._locked():
                before = self.read()
                desired = edit(before)
                if desired == before:
                    return before
                desired = desired.model_copy(update={"revision": before.revision + 1})
                self._write(orjson.dumps(desired.model_dump(mode="json"), option=orjson.OPT_INDENT_2) + b"\n")
                return desired
        except StateUnreadable as problem:
            raise NotReady(str(problem)) from problem
        except OSError as problem:
            what = f"state file {self.path} cannot be written: {problem.strerror or problem}"
            if problem.errno in {errno.EROFS, errno.EACCES, errno.EPERM}:
                raise Unimplemented(f"{what}; start the service with --state-file on a writable path") from problem
            raise NotReady(what) from problem

    def _write(self, content: bytes) -> None:
        aside = self.path.with_name(f"{self.path.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            with aside.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(self.path)
        except BaseException:
            with contextlib.suppress(OSError):
                aside.unlink()
            raise
        files.sync(self.path.parent)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Excludes other writers, where the file system has locks."""
        descriptor = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


class Follower:
    """The desired state as it could last be read.

    Attributes:
      desired: None: it could not be read since the start.
      problem: why it cannot be read now; empty: it can.
    """

    def __init__(self, file: StateFile) -> None:
        """Has read nothing yet."""
        self._file = file
        self._stamp: Stamp | None = None
        self.desired: Desired | None = None
        self.problem = ""

    def refresh(self) -> bool:
        """Reads the file if it has changed; returns whether `desired` or `problem` did."""
        before = self.desired, self.problem
        try:
            stamp = self._file.stamp()
            if self.desired is None or self.problem or stamp != self._stamp:
                self.desired, self._stamp = self._file.read(), stamp
            self.problem = ""
        except StateUnreadable as problem:
            # A directory that is gone is mostly the root itself, which is reported as such.
            if self.desired is None or self._file.path.parent.is_dir():
                self.problem = str(problem)
        return (self.desired, self.problem) != before
