"""Ends what tests started once the process that ran them is gone.

A run that is interrupted or killed does not come to the end of its fixtures. What they started,
services and forkservers of hundreds of megabytes, would live on and disturb the next run. So each
process that runs tests has another beside it, which waits for its end, however it comes, and then
kills whatever carries its mark in the environment.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MARK = "TESTS_RUN_MARK"
"""The environment variable by which programs that tests start are known. Its name is none of a
setting: services that tests start are kept from those of this process.
"""
_POLL_S = 0.5
_PASSES = 3
"""A program may start another while the first ones are killed."""


def end_what_this_process_leaves() -> None:
    """Starts the process that waits for the end of this one."""
    mark = os.environ[MARK] = uuid.uuid4().hex
    null = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_RDWR, 0) for stream in (0, 1, 2)]
    # A session of its own: Ctrl-C and the end of a terminal do not reach it.
    os.posix_spawn(
        sys.executable,
        [sys.executable, "-S", __file__, str(os.getpid()), mark],
        os.environ,
        file_actions=null,
        setsid=True,
    )


def wait_and_end(parent: int, mark: str) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL_S)
    for _ in range(_PASSES):
        for process in _marked(mark):
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)
        time.sleep(_POLL_S)


def _marked(mark: str) -> Iterator[int]:
    """Yields the processes whose environment has the mark, but for this one."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal() or int(folder.name) == os.getpid():
            continue
        with suppress(OSError):  # it has ended, or is another user's
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name)


if __name__ == "__main__":
    wait_and_end(int(sys.argv[1]), sys.argv[2])
