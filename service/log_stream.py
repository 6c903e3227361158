"""The log's way to standard error: a pipe that nobody reads, or a full disk, perhaps. No call waits for it."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import stat
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import TextIO

import orjson

_PATIENCE_S = 0.02
"""Once, of a reader that is merely behind; one that then has not read is not waited for until there is room again."""


class LogStream:
    """Writes lines as long as there is room; the others are lost, and counted, and the next line tells of them.

    Attributes:
      lost: lines that were not written.
    """

    def __init__(self, stream: TextIO) -> None:
        """Writes to where a stream's file descriptor leads."""
        self._stream = stream  # keeps it open
        self._descriptor = stream.fileno()
        self._opened = contextlib.ExitStack()
        self._send = _sender(self._descriptor, self._opened)
        self._rest = b""
        """Of a line that was begun: it has to end before another begins."""
        self._behind = False
        self._untold = self.lost = 0

    def write(self, text: str) -> None:
        """Writes or loses a line; one caller at a time."""
        line = text.encode(errors="backslashreplace")
        if self._put(self._told() + line if self._untold else line):
            self._untold = 0
        else:
            self._untold += 1
            self.lost += 1

    def flush(self) -> None:
        """Does nothing: nothing is kept back."""

    def close(self) -> None:
        """Lets go of what was opened beside the stream, and writes no more."""
        self._opened.close()

    def _told(self) -> bytes:
        told = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "level": "warning",
            "logger": "rowcast.service.log_stream",
            "event": "log_lines_lost",
            "lines": self._untold,
            "pid": os.getpid(),
        }
        return orjson.dumps(told) + b"\n"

    def _put(self, line: bytes) -> bool:
        """Writes what is left, then a line; False: the line was not begun."""
        data, left = self._rest + line, len(self._rest)
        sent = self._sent(data)
        self._rest = data[sent:] if sent > left else self._rest[sent:]
        return sent > left

    def _sent(self, data: bytes) -> int:
        sent, end = 0, time.monotonic() + _PATIENCE_S
        while sent < len(data):
            try:
                sent += self._send(data[sent:])
                self._behind = False
            except BlockingIOError:
                left_s = end - time.monotonic()
                if self._behind or left_s <= 0 or not _room(self._descriptor, left_s):
                    self._behind = True
                    break
            except OSError:  # nobody will ever read it, or the disk is full
                break
        return sent


def _sender(descriptor: int, opened: contextlib.ExitStack) -> Callable[[bytes], int]:
    """Returns what writes to a descriptor without waiting, and leaves it as it is for others who have it."""
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISSOCK(mode):
        end = opened.enter_context(socket.socket(fileno=os.dup(descriptor)))
        return lambda data: end.send(data, socket.MSG_DONTWAIT)
    if not (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)):
        return partial(os.write, descriptor)
    with contextlib.suppress(OSError):  # opened anew it has flags of its own
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
        own = os.open(f"/proc/self/fd/{descriptor}", flags)
        opened.callback(os.close, own)
        return partial(os.write, own)
    return partial(_write_into_room, descriptor)


def _write_into_room(descriptor: int, data: bytes) -> int:
    """Writes to a pipe of another user, as much as it has room for if nobody else writes at this moment."""
    if not _room(descriptor, 0):
        raise BlockingIOError
    return os.write(descriptor, data[: select.PIPE_BUF])


def _room(descriptor: int, wait_s: float) -> bool:
    polling = select.poll()
    polling.register(descriptor, select.POLLOUT)
    return bool(polling.poll(wait_s * 1000))
