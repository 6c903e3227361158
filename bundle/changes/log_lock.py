"""The lock of a change log: a file beside it that one process locks to write, and others to read.

The kernel releases the lock when its holder dies, so that nothing has to be cleaned up. A lock that
another process holds is tried again and again until a deadline: `flock` itself would wait for ever.
"""

from __future__ import annotations

import fcntl
import math
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple, Protocol

from bundle.errors import LogLocked
from bundle.storage import files

_REPORTED_S = 5.0
"""Time for which a lock is waited for before that is a problem: a write takes milliseconds."""
_PAUSE_MIN_S = 0.001
_PAUSE_MAX_S = 0.05
_PAUSE_SHARE = 10
"""A pause is the time waited so far divided by this: a wait lasts a tenth longer than it must."""

_COMMAND_CHARACTERS_MAX = 120
"""Maximum number of characters of a command line that are shown."""


class ThreadLock(Protocol):
    """A lock of the module `threading`."""

    def acquire(self, blocking: bool = ..., timeout: float = ...) -> bool:
        """Waits for the lock; returns whether it was acquired."""

    def release(self) -> None:
        """Releases the lock."""


class Holder(NamedTuple):
    """A process that holds a lock.

    Attributes:
      pid: Its process id.
      command: Its command line; "": it cannot be read.
    """

    pid: int
    command: str


class LogLock:
    """The lock of one log, as one process takes it. Safe for any number of threads.

    Attributes:
      path: The file, which is created when it is needed.
    """

    def __init__(self, path: Path) -> None:
        """Takes nothing yet; `path`: the file."""
        self.path = path
        self._failed_first = 0.0
        """The monotonic time of the first of the last attempts that failed in a row; 0: the last
        one succeeded.
        """
        self._failed_last = 0.0

    @property
    def is_held_elsewhere(self) -> bool:
        """Whether the last attempt to take it failed."""
        return bool(self._failed_first)

    @property
    def waited_s(self) -> float:
        """The time for which this process has waited for the lock, once it is long enough to be
        reported; 0: it has the lock, or has not waited for so long.
        """
        waited_s = self._failed_last - self._failed_first
        is_recent = time.monotonic() - self._failed_last < _REPORTED_S
        if not self._failed_first or waited_s < _REPORTED_S or not is_recent:
            return 0.0
        return waited_s

    @property
    def problem(self) -> str:
        """That the lock has been waited for for long, and who holds it; "": it has not."""
        waited_s = self.waited_s
        if not waited_s:
            return ""
        shown_holders = [
            f"process {holder.pid} ({holder.command or 'unknown command'})"
            for holder in holders(self.path)
        ]
        names = " and ".join(shown_holders) or "a process that this one cannot see"
        return f"the lock {self.path} is held by {names}"

    def to_read(self, deadline: float) -> AbstractContextManager[object]:
        """Waits until nobody writes; returns what releases the lock at its end.

        Raises:
          LogLocked: Another process has held the lock until the deadline.
          OSError: The file cannot be opened.
        """
        return self._acquired(fcntl.LOCK_SH, deadline)

    def to_write(self, deadline: float) -> AbstractContextManager[object]:
        """Waits until nobody reads or writes; otherwise as `to_read`."""
        return self._acquired(fcntl.LOCK_EX, deadline)

    def _acquired(self, kind: int, deadline: float) -> AbstractContextManager[object]:
        for _ in attempts(deadline):
            lock = self._attempt(kind)
            if lock is not None:
                self._failed_first = 0.0
                return lock
            now = time.monotonic()
            # Attempts that lie far apart are two waits.
            if not self._failed_first or now - self._failed_last > _REPORTED_S:
                self._failed_first = now
            self._failed_last = now
        raise LogLocked(f"another process holds the lock {self.path}; try again")

    def _attempt(self, kind: int) -> AbstractContextManager[object] | None:
        """Returns the lock if nobody else has it now."""
        try:
            # Only whoever may write the log needs to be able to write its lock.
            flags = os.O_RDWR
            if kind == fcntl.LOCK_SH:
                flags = os.O_RDONLY
            file = open(files.open_private(self.path, flags), "rb", buffering=0)  # noqa: SIM115
        except OSError:
            # A log that lies where nothing can be created is read without a lock: nobody writes it.
            if kind == fcntl.LOCK_SH and not self.path.exists():
                return nullcontext()
            raise
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        except OSError:
            file.close()
            raise
        return file


@contextmanager
def held(lock: ThreadLock, deadline: float, problem: str) -> Iterator[None]:
    """Holds a lock of this process, which is waited for until a monotonic time.

    Args:
      lock: The lock.
      deadline: The time; infinite: it is waited for as long as it takes.
      problem: What the error says.

    Raises:
      LogLocked: Another thread has held the lock until the deadline.
    """
    timeout_s = -1.0
    if deadline < math.inf:
        timeout_s = max(0.0, deadline - time.monotonic())
    if not lock.acquire(timeout=timeout_s):
        raise LogLocked(problem)
    try:
        yield
    finally:
        lock.release()


def attempts(deadline: float) -> Iterator[None]:
    """Yields once, and again after growing pauses until a monotonic time has passed."""
    began = time.monotonic()
    while True:
        yield
        now = time.monotonic()
        if now >= deadline:
            return
        pause_s = min(max((now - began) / _PAUSE_SHARE, _PAUSE_MIN_S), _PAUSE_MAX_S)
        time.sleep(min(pause_s, deadline - now))


def holders(path: Path) -> list[Holder]:
    """Returns the processes that hold a lock, as far as this one can see them."""
    try:
        inode = path.stat().st_ino
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return []
    pids = []
    for line in lines:
        # "1: FLOCK ADVISORY WRITE 710 08:01:1573 0 EOF"; an arrow marks a process that waits. Some
        # file systems give the kernel another device than programs, so that the inode decides.
        columns = line.split()
        if columns[1] == "FLOCK" and columns[5].endswith(f":{inode}"):
            pids.append(int(columns[4]))
    # A process of another PID namespace has the number 0.
    return [Holder(pid, _command(pid)) for pid in pids if pid > 0]


def _command(pid: int) -> str:
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return b" ".join(arguments).decode(errors="replace").strip()[:_COMMAND_CHARACTERS_MAX]
