"""`rowcast-export` in children of a process that has imported all it needs but used none: quick to
start, real to kill.

Options of when a run dies:
  noted: N       right after its N-th step was noted in the journal
  seconds: S     whatever it is doing then
  operation: N   right before the N-th file or directory that it makes, renames or removes
  stops: N       it stops right after its N-th step, which its status reports, until SIGCONT
  damages: {after: STEP, file: PATH}   a part of a staged file turns to zeros
  file_bytes: N  it does not die either: no file that it writes can be larger
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import psutil


class ForkedRuns:
    """Runs commands, one at a time."""

    def __init__(self) -> None:
        self._context = _context()

    def run(self, arguments: list[str], output: Path, **dies: Any) -> int:
        """Runs a command to its end; returns its status, negative if a signal ended it.

        Its stdout and stderr go to `output`.
        """
        self.start(arguments, output, **dies)
        return self.status()

    def start(self, arguments: list[str], output: Path, **dies: Any) -> int:
        """Begins a command; returns its process id."""
        self._process = self._context.Process(target=_child, args=(arguments, output, dies))
        self._process.start()
        assert self._process.pid is not None
        return self._process.pid

    def status(self) -> int:
        """Waits until the command ends or stops."""
        while self._process.exitcode is None:
            self._process.join(0.02)
            with suppress(psutil.NoSuchProcess):
                if psutil.Process(self._process.pid).status() == psutil.STATUS_STOPPED:
                    return -signal.SIGSTOP
        return self._process.exitcode


def call_forked(function: Callable[..., None], *arguments: Any) -> None:
    """Calls a function in such a child."""
    process = _context().Process(target=function, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 0, f"{function.__name__} failed; its stderr says why"


def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.units.export.preloaded"])
    return context


OPERATIONS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate"}


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _die_when(dies: Mapping[str, Any]) -> None:
    from bundle.storage.staging import Staging

    finish = Staging.finish
    calls = itertools.count(1)

    def finish_and_die(self: Staging, *arguments: Any) -> None:
        number = next(calls)
        finish(self, *arguments)
        damages = dies.get("damages", {})
        if arguments[0] == damages.get("after"):
            path = self.directory / damages["file"]
            content = bytearray(path.read_bytes())
            content[len(content) // 3 : len(content) // 2] = bytes(
                len(content) // 2 - len(content) // 3
            )
            path.write_bytes(content)
        if number == dies.get("noted"):
            _die()
        if number == dies.get("stops"):
            os.kill(os.getpid(), signal.SIGSTOP)

    operations = itertools.count(1)

    def die_in_operation(event: str, arguments: tuple[Any, ...]) -> None:
        changes = event == "open" and bool(arguments[2] & (os.O_CREAT | os.O_TRUNC))
        if (changes or event in OPERATIONS) and next(operations) == dies["operation"]:
            _die()

    if "operation" in dies:
        sys.addaudithook(die_in_operation)
    if "file_bytes" in dies:
        resource.setrlimit(resource.RLIMIT_FSIZE, (dies["file_bytes"], resource.RLIM_INFINITY))
    if "seconds" in dies:
        # Ends the process where it stands, as SIGKILL does.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, dies["seconds"])
    Staging.finish = finish_and_die  # type: ignore[assignment, method-assign]


def _child(arguments: list[str], output: Path, dies: Mapping[str, Any]) -> None:
    from export.cli.main import main

    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.argv = ["rowcast-export", *arguments]
    # Ignored where the tests run in a shell's background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _die_when(dies)
    main()
