"""Functions for other processes to run: they must be importable by name."""

from __future__ import annotations

import errno
import os
import signal
import threading
from pathlib import Path

from export.errors import CheckpointError, DestinationError
from export.jobs.executors import LocalExecutor


def square(number: int) -> int:
    return number * number


def process_id(number: int) -> tuple[int, int]:
    return number, os.getpid()


def reject_three(number: int) -> int:
    if number == 3:
        raise CheckpointError("three is not read")
    return number


def die(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def die_once(mark: str) -> str:
    """Dies the first time."""
    if not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return mark


def fail_storage(mark: str) -> int:
    """Fails: for ever, or twice if the file that counts its tries is called `passes`; as full if it
    is called so.
    """
    with Path(mark).open("a+") as file:
        print(file=file)
        file.seek(0)
        tries = len(file.readlines())
    code = errno.ENOSPC if Path(mark).name == "full" else errno.EIO
    if tries < 3 or Path(mark).name != "passes":
        try:
            raise OSError(code, os.strerror(code))
        except OSError as problem:
            raise DestinationError(f"{mark} cannot be written: {problem.strerror}") from problem
    return tries


def hold(pipe: str) -> None:
    """Writes its process id to a pipe, then keeps the pipe open until something ends this process
    or this call.
    """
    with open(pipe, "w") as out:
        print(os.getpid(), file=out, flush=True)
        threading.Event().wait()


def hold_two(pipe: str) -> None:
    """Runs two tasks that never end by themselves."""
    LocalExecutor(2).run(hold, [pipe, pipe])
