"""A running `rowcast-serve`: started on free ports, its log read line by line, stopped
by a signal.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

WAIT_S = 600
"""The limit of everything that tests wait for: only a program that hangs reaches it, however busy
the machine is.
"""
PROGRAM = [str(Path(sys.executable).with_name("rowcast-serve"))]


def until(what: Callable[[], bool]) -> None:
    """Waits for what a thread or another process brings about in its own time."""
    end = time.monotonic() + WAIT_S
    pause_s = 0.005
    while not what():
        assert time.monotonic() < end
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.1)  # a process that starts needs the core itself


class Lines:
    """A running program whose log lines arrive in a queue.

    Attributes:
      others: Further text on stderr so far, beside the events.
    """

    def __init__(
        self,
        command: Sequence[str],
        directory: Path | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        inherited = {
            name: os.environ[name]
            for name in os.environ
            if not name.startswith(("ROWCAST_", "PYTHONPATH"))
        }
        self.process = subprocess.Popen(
            command,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            cwd=directory,
            env={**inherited, **(variables or {})},
        )
        self.others: list[str] = []
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._unread: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if line.startswith("{"):
                self._lines.put(json.loads(line))
            else:
                self.others.append(line)
        self._lines.put(None)

    def event(self, name: str, **fields: object) -> dict[str, Any]:
        """Waits for a log line with these fields that was not returned before, whatever other lines
        came first.
        """
        expected = {"event": name, **fields}
        while True:
            for place, line in enumerate(self._unread):
                if all(line.get(field) == value for field, value in expected.items()):
                    return self._unread.pop(place)
            received = self._lines.get(timeout=WAIT_S)
            assert received is not None, f"it ended before {name!r}: {''.join(self.others)}"
            self._unread.append(received)

    def last_lines(self) -> list[dict[str, Any]]:
        """Waits for its end; returns all log lines that were not returned before."""
        while (line := self._lines.get(timeout=WAIT_S)) is not None:
            self._unread.append(line)
        return self._unread

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(WAIT_S)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Has it and its workers stand still."""
        supervisor = psutil.Process(self.process.pid)
        # The supervisor first and resumed last: it replaces workers that stand still.
        processes = [supervisor, *supervisor.children(recursive=True)]
        for process in processes:
            process.suspend()
        try:
            yield
        finally:
            for process in reversed(processes):
                process.resume()

    def kill(self) -> None:
        """Ends it whatever it does."""
        self.process.kill()
        self.process.wait()
        self._reader.join(WAIT_S)
        assert self.process.stderr is not None
        self.process.stderr.close()


class Process(Lines):
    """A running `rowcast-serve` on free ports, this repository's or another's."""

    def __init__(
        self,
        root: Path,
        *options: str,
        program: Sequence[str] = PROGRAM,
        directory: Path | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._ports = root.parent / f"ports-{time.monotonic_ns()}.json"
        ports = ["--http-port", "0", "--grpc-port", "0", "--health-port", "0"]
        arguments = [
            "--root",
            str(root),
            *ports,
            "--ports-file",
            str(self._ports),
            "--poll-interval-s",
            "0.05",
            "--drain-delay-s",
            "0",
        ]
        # No deadline passes because the machine is busy, and no worker counts as hung.
        for name in ("request-timeout-s", "body-timeout-s", "worker-timeout-s"):
            arguments += [f"--{name}", str(WAIT_S)]
        super().__init__([*program, *arguments, *options], directory, variables)

    def client(self) -> httpx.Client:
        self.event("listening")
        return httpx.Client(
            base_url=f"http://127.0.0.1:{self.ports['http']}", timeout=WAIT_S, verify=False
        )

    @property
    def ports_file(self) -> Path:
        return self._ports

    @property
    def ports(self) -> dict[str, int]:
        until(self._ports.exists)  # a model may be loaded before every worker listens
        bound: dict[str, int] = json.loads(self._ports.read_text())
        return bound


def kill_all(process: Process) -> None:
    """Kills a service and its workers at once."""
    supervisor = psutil.Process(process.process.pid)
    for running in (supervisor, *supervisor.children(recursive=True)):
        running.kill()
    process.process.wait()
