"""CPU seconds of this process and of all that it started, as Linux counts them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_USER_TIME = 11
"""The place of `utime` behind the command's name in /proc/PID/stat; `stime`, `cutime` and `cstime`
follow it.
"""


class Stopwatch:
    """Counts CPU seconds, which never decrease: those of an ended child still count."""

    def __init__(self, read: Callable[[], float] | None = None) -> None:
        """Starts to count.

        Args:
          read: Returns the current number of seconds; None: the seconds of this process.
        """
        self._read = cpu_seconds if read is None else read
        self._last = self._read()
        self._ended = 0.0

    def seconds(self) -> float:
        """Returns the seconds that were used so far."""
        now = self._read() + self._ended
        if now < self._last:
            self._ended += self._last - now
            now = self._last
        self._last = now
        return now


def cpu_seconds() -> float:
    """Returns the CPU seconds that this process and its descendants have used so far.

    Descendants that ended count if their parent waited for them. What runs on after its parent
    ended, such as a daemon, does not count.
    """
    own = os.times()
    descendants = sum(_seconds_of(process) for process in _descendants(os.getpid()))
    return own.user + own.system + own.children_user + own.children_system + descendants


def _seconds_of(process: int) -> float:
    """Returns the seconds of a process and of those of its children that it has waited for."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:  # it has just ended
        return 0.0
    fields = stat.rpartition(")")[2].split()
    ticks = fields[_USER_TIME : _USER_TIME + 4]
    return sum(map(int, ticks)) / _TICKS_PER_SECOND


def _descendants(process: int) -> Iterator[int]:
    for child in _children(process):
        yield child
        yield from _descendants(child)


def _children(process: int) -> list[int]:
    """Returns the children that a process's main thread started."""
    with suppress(OSError):
        return [
            int(child)
            for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()
        ]
    return []
