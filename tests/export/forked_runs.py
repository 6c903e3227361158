"""`rowcast-export` in children of a process that has imported all it needs but used none: quick to start, real to kill.

That is TensorFlow too, unless only `tables` is to be run.

Orders come as JSON lines on stdin; each is answered by two lines, the child's process id and its exit status (negative:
the signal that ended it). An order may say when the child dies:
  noted: N       right after its N-th step was noted in the journal
  unnoted: N     right before it: the step's files are there, the journal does not know
  renaming       in the commit, manifest written, before the rename
  renamed        in the commit, after the rename, before the journal is removed
  seconds: S     whatever it is doing then
  operation: N   right before the N-th file or directory that it makes, renames or removes
  stops: N       it does not die but stops right after its N-th step, which is told as a status too, until SIGCONT
  damages: {after: STEP, file: PATH}   it does not die either: a part of a staged file turns to zeros
  file_bytes: N  it does not die either: no file that it writes can be larger
  io: FILE       it does not die either: what it read and wrote, as the kernel counts it, is copied to a file at its end
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class ForkedRuns:
    """The test's side."""

    def __init__(self, tables_only: bool = False) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.export.forked_runs", *(["tables"] if tables_only else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )

    def run(self, arguments: list[str], output: Path, **dies: Any) -> int:
        """Runs a command to its end; returns its status. Its stdout and stderr go to `output`."""
        self.start(arguments, output, **dies)
        return self.status()

    def start(self, arguments: list[str], output: Path, **dies: Any) -> int:
        """Begins a command; returns its process id."""
        assert self._process.stdin is not None
        order = {"arguments": arguments, "output": str(output), "dies": dies}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self.status()

    def status(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate(timeout=60)


OPERATIONS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate"}


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _die_when(dies: Mapping[str, Any]) -> None:
    from bundle.storage.staging import Staging

    finish = Staging.finish
    calls = itertools.count(1)

    def finish_and_die(self: Staging, *arguments: Any) -> None:
        number = next(calls)
        if number == dies.get("unnoted"):
            _die()
        finish(self, *arguments)
        damages = dies.get("damages", {})
        if arguments[0] == damages.get("after"):
            path = self.directory / damages["file"]
            content = bytearray(path.read_bytes())
            content[len(content) // 3 : len(content) // 2] = bytes(len(content) // 2 - len(content) // 3)
            path.write_bytes(content)
        if number == dies.get("noted"):
            _die()
        if number == dies.get("stops"):
            os.kill(os.getpid(), signal.SIGSTOP)

    def die_in_rename(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "os.rename" and Path(arguments[0]).name.startswith(".staging-"):
            _die()

    def die_in_unlink(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "os.remove" and Path(arguments[0]).name.endswith(".journal"):
            _die()

    operations = itertools.count(1)

    def die_in_operation(event: str, arguments: tuple[Any, ...]) -> None:
        changes = event == "open" and bool(arguments[2] & (os.O_CREAT | os.O_TRUNC))
        if (changes or event in OPERATIONS) and next(operations) == dies["operation"]:
            _die()

    if "operation" in dies:
        sys.addaudithook(die_in_operation)
    if "file_bytes" in dies:
        resource.setrlimit(resource.RLIMIT_FSIZE, (dies["file_bytes"], resource.RLIM_INFINITY))
    if "renaming" in dies:
        sys.addaudithook(die_in_rename)
    if "renamed" in dies:
        sys.addaudithook(die_in_unlink)
    if "seconds" in dies:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process where it stands, as SIGKILL does
        signal.setitimer(signal.ITIMER_REAL, dies["seconds"])
    Staging.finish = finish_and_die  # type: ignore[assignment, method-assign]


def _child(order: Mapping[str, Any]) -> None:
    from export.cli.main import main

    file = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.argv = ["rowcast-export", *order["arguments"]]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in a shell's background
    _die_when(order["dies"])
    code: Any = 1
    try:
        main()
    except SystemExit as finished:
        code = finished.code
    if "io" in order["dies"]:
        Path(order["dies"]["io"]).write_text(Path("/proc/self/io").read_text())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


def _serve(tables_only: bool) -> None:
    if tables_only:
        from export.cli import commands, published_page  # noqa: F401
        from export.jobs import tables_job  # noqa: F401
    else:
        from export.frameworks.loading import load_tensorflow

        load_tensorflow()
        import tensorflow_recommenders  # noqa: F401

        from export.jobs import bundle_job  # noqa: F401

    for line in sys.stdin:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            _child(json.loads(line))
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()
        while True:
            _, status = os.waitpid(child, os.WUNTRACED)
            stopped = os.WIFSTOPPED(status)
            sys.stdout.write(f"{-os.WSTOPSIG(status) if stopped else os.waitstatus_to_exitcode(status)}\n")
            sys.stdout.flush()
            if not stopped:
                break


if __name__ == "__main__":
    _serve(sys.argv[1:] == ["tables"])
