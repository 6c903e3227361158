"""The file that holds what an operator wants: read by every process of a service, written aside and renamed.

A file that cannot be read changes nothing in a service that runs. One that starts then loads nothing and says why: it
cannot know which versions it must not serve.
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
from service.generations.desired import Desired

NAME = ".rowcast-state.json"
"""Under the root, unless a setting says otherwise: no model has such a name."""
BYTES_MAX = 4 << 20

Stamp = tuple[int, int, int]
"""What tells one file from another: time of change (ns), bytes, inode."""


class StateUnreadable(Exception):
    """The file is there, or may be, but what it wants cannot be known; says why."""


class StateAway(StateUnreadable):
    """Its directory is not there, so that nobody can tell whether the file is."""


class StateFile:
    """One service's desired state on disk."""

    def __init__(self, path: Path) -> None:
        """Names the file, which need not exist."""
        self.path = path

    def stamp(self) -> Stamp | None:
        """Returns what tells that the file has changed; None: there is none.

        Raises:
          StateUnreadable: it cannot be looked at, or its directory is gone.
        """
        try:
            found = self.path.stat()
        except FileNotFoundError:
            if self.path.parent.is_dir():
                return None
            raise StateAway(f"the directory of state file {self.path} is not there") from None
        except OSError as problem:
            raise StateUnreadable(f"state file {self.path} cannot be read: {problem.strerror}") from problem
        if not stat.S_ISREG(found.st_mode):  # what has no end would be read for ever
            raise StateUnreadable(f"state file {self.path} is no regular file")
        return found.st_mtime_ns, found.st_size, found.st_ino

    def read(self) -> Desired:
        """Returns what the file wants; without a file, nothing.

        Raises:
          StateUnreadable: it cannot be read, or is not what it should be.
        """
        if self.stamp() is None:
            return Desired()
        try:
            with self.path.open("rb") as file:
                page = file.read(BYTES_MAX + 1)
        except OSError as problem:
            raise StateUnreadable(f"state file {self.path} cannot be read: {problem.strerror}") from problem
        if len(page) > BYTES_MAX:
            raise StateUnreadable(f"state file {self.path} is larger than {BYTES_MAX} bytes")
        try:
            return Desired.model_validate_json(page)
        except ValidationError as problem:
            first = problem.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the page"
            raise StateUnreadable(
                f"state file {self.path} is damaged, or of another product version: {where}: {first['msg']}; mend it, "
                "or remove it to serve the newest versions"
            ) from problem

    def update(self, edit: Callable[[Desired], Desired]) -> Desired:
        """Changes what is wanted; all of it is on disk when this returns, or nothing is.

        Args:
          edit: what is wanted now -> what is wanted from now on.
        Returns:
          What is wanted now.
        Raises:
          NotReady: the file cannot be read, or not be written now.
          Unimplemented: it cannot be written where it is.
          Exception: whatever `edit` raises; nothing is changed.
        """
        try:
            with self._alone():
                before = self.read()
                wanted = edit(before)
                if wanted == before:
                    return before
                wanted = wanted.model_copy(update={"revision": before.revision + 1})
                self._write(orjson.dumps(wanted.model_dump(mode="json"), option=orjson.OPT_INDENT_2) + b"\n")
                return wanted
        except StateUnreadable as problem:
            raise NotReady(str(problem)) from problem
        except OSError as problem:
            told = f"state file {self.path} cannot be written: {problem.strerror or problem}"
            if problem.errno in {errno.EROFS, errno.EACCES, errno.EPERM}:
                raise Unimplemented(f"{told}; start the service with --state-file on a path that can be") from problem
            raise NotReady(told) from problem

    def _write(self, page: bytes) -> None:
        aside = self.path.with_name(f"{self.path.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            with aside.open("wb") as file:
                file.write(page)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(self.path)
        except BaseException:
            with contextlib.suppress(OSError):
                aside.unlink()
            raise
        files.sync(self.path.parent)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keeps other writers out, where the file system has locks."""
        descriptor = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


class Follower:
    """What the file wanted when it could last be read."""

    def __init__(self, file: StateFile) -> None:
        """Has read nothing yet."""
        self._file = file
        self._stamp: Stamp | None = None
        self.desired: Desired | None = None
        """None: it could not be read since the start."""
        self.problem = ""
        """Why it cannot be read now."""

    def refresh(self) -> bool:
        """Reads the file if it has changed; tells whether anything is wanted, or told, otherwise than before."""
        before = self.desired, self.problem
        try:
            stamp = self._file.stamp()
            if self.desired is None or self.problem or stamp != self._stamp:
                self.desired, self._stamp = self._file.read(), stamp
            self.problem = ""
        except StateUnreadable as problem:
            if not isinstance(problem, StateAway) or self.desired is None:  # away with its root, which tells of it
                self.problem = str(problem)
        return (self.desired, self.problem) != before
