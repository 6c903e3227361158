"""Functions for other processes to run: they must be importable by name."""

from __future__ import annotations

import os
import signal

from export.errors import CheckpointError


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
