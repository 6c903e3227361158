"""The lock of a change log: a file beside it. The process that holds it is the writer of the log,
for as long as it lives: the kernel releases the lock when it dies, and nothing is to be cleaned up.

    inode, end     of the log, up to which it is on the disk (two uint64, little-endian); inode 0:
                   the writer has not read the log yet
    writer         JSON: how other processes of the host reach the writer

Others read the log up to that end, and nothing that a loss of power could take back. While nobody
holds the lock, the log is read to the end of its file.
"""

from __future__ import annotations

import fcntl
import math
import os
import secrets
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

import orjson

from bundle.errors import LogLocked
from bundle.storage import files

_PAUSE_MIN_S = 0.001
_PAUSE_MAX_S = 0.05
_PAUSE_SHARE = 10
"""A pause is the time waited so far divided by this: a wait lasts a tenth longer than it must."""
_COMMAND_CHARACTERS_MAX = 120
"""Maximum number of characters of a command line that are shown."""
_END = struct.Struct("<QQ")
_WRITER_BYTES_MAX = 4096


class ThreadLock(Protocol):
    """A lock of the module `threading`."""

    def acquire(self, blocking: bool = ..., timeout: float = ...) -> bool:
        """Waits for the lock; returns whether it was acquired."""

    def release(self) -> None:
        """Releases the lock."""


class LogEnd(NamedTuple):
    """How far a log was read, or is on the disk.

    Attributes:
      inode: The inode of the file; 0: it is not known.
      position: The offset behind the last record.
    """

    inode: int
    position: int


class Writer(NamedTuple):
    """How other processes of the host reach the writer of a log.

    Attributes:
      pid: Its process id.
      address: The address of its Unix socket; "": it takes nothing from others.
    """

    pid: int
    address: str = ""


class LogLock:
    """The lock of one log, as one process takes it. Safe for any number of threads.

    Attributes:
      path: The file, which is created when it is needed.
    """

    def __init__(self, path: Path) -> None:
        """Takes nothing yet; `path`: the file."""
        self.path = path
        self._held: int | None = None
        self._lock = threading.Lock()

    @property
    def is_held(self) -> bool:
        """Whether this process is the writer."""
        return self._held is not None

    @property
    def is_in_place(self) -> bool:
        """Whether the file is still the one that this process holds.

        Raises:
          OSError: It is gone, or its directory cannot be read.
        """
        if self._held is None:
            return False
        return os.fstat(self._held).st_ino == self.path.stat().st_ino

    def acquire(self, writer: Writer) -> bool:
        """Makes this process the writer, if no other one is; returns whether it is now.

        Args:
          writer: How others reach it.

        Raises:
          OSError: The file cannot be written.
        """
        with self._lock:
            if self._held is not None:
                return True
            descriptor = self._locked(fcntl.LOCK_EX)
            if descriptor is None:
                return False
            # Another end than any before, so that readers look again whatever they have seen.
            unknown = _END.pack(0, secrets.randbits(63))
            try:
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, unknown + orjson.dumps(writer._asdict()), 0)
            except OSError:
                # Kept open, it would lock out all processes, this one too.
                os.close(descriptor)
                raise
            self._held = descriptor
            return True

    def publish(self, end: LogEnd) -> None:
        """Lets others read the log up to an end, by the writer."""
        assert self._held is not None  # noqa: S101 - the writer calls it
        os.pwrite(self._held, _END.pack(*end), 0)

    def release(self) -> None:
        """Lets another process become the writer."""
        with self._lock:
            if self._held is not None:
                os.close(self._held)
                self._held = None

    def published(self) -> LogEnd | None:
        """Returns the end up to which others may read; None: nobody has ever written."""
        content = self._content()
        if len(content) < _END.size:
            return None
        return LogEnd(*_END.unpack_from(content))

    def writer(self) -> Writer | None:
        """Returns how the last writer is reached; None: nobody has ever written."""
        try:
            return Writer(**orjson.loads(self._content()[_END.size :]))
        except (ValueError, TypeError):
            return None

    @contextmanager
    def free(self) -> Iterator[bool]:
        """Keeps the log without a writer, if it has none; yields whether it has none."""
        descriptor = None
        try:
            descriptor = self._locked(fcntl.LOCK_SH)
            is_free = descriptor is not None
        except FileNotFoundError:  # nobody has ever written
            is_free = True
        try:
            yield is_free
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def holders(self) -> str:
        """Returns the processes that hold the lock, for errors."""
        shown_holders = [f"process {pid} ({_command(pid)})" for pid in _holders(self.path)]
        return " and ".join(shown_holders) or "a process that this one cannot see"

    def _locked(self, kind: int) -> int | None:
        """Returns a descriptor that holds the lock; None: another process holds it."""
        if kind == fcntl.LOCK_SH:  # only a writer needs to be able to write the file
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        else:
            descriptor = files.open_private(self.path, os.O_RDWR)
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def _content(self) -> bytes:
        try:
            with self.path.open("rb", buffering=0) as file:
                return file.read(_WRITER_BYTES_MAX)
        except FileNotFoundError:
            return b""


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


def _holders(path: Path) -> list[int]:
    """Returns the ids of the processes that hold a lock, as far as this one can see them."""
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
    return [pid for pid in pids if pid > 0]


def _command(pid: int) -> str:
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "unknown command"
    return b" ".join(arguments).decode(errors="replace").strip()[:_COMMAND_CHARACTERS_MAX]
