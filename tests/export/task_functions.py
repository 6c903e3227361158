"""Functions for other processes to run: they must be importable by name."""

from __future__ import annotations

import os
import signal
import threading

from export.errors import CheckpointError
from export.executors import run_tasks


def square(number: int) -> int:
    return number * number


def process_id(number: int) -> tuple[int, int]:
    return number, os.getpid()


def refuse_three(number: int) -> int:
    if number == 3:
        raise CheckpointError("three is not read")
    return number


def die(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def hold(pipe: str) -> None:
    """Says its process id into a pipe, then holds the pipe open until something ends this process or this call."""
    with open(pipe, "w") as out:
        print(os.getpid(), file=out, flush=True)
        threading.Event().wait()


def hold_two(pipe: str) -> None:
    """Runs two tasks that never end by themselves."""
    run_tasks(hold, [pipe, pipe], 2)
