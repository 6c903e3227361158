"""Running services to be measured: start, time to the first answer, memory, CPU; stopped while others are measured."""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

READY_WITHIN_S = 120
LOOK_EVERY_S = 0.005
_ALL = "import service.command_line, service.process, service.start, uvloop"


@functools.cache
def installed() -> Mapping[str, str]:
    """Returns the environment in which programs find compiled modules, as an installed package has them.

    A checkout may be run without any, and compiles 200 modules at each start then.
    """
    place = tempfile.mkdtemp(prefix="rowcast-bytecode-")
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    found = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": place}
    subprocess.run([sys.executable, "-c", _ALL], env={**os.environ, **found}, check=True)
    return found


class NotStarted(Exception):
    """A program ended, or did not answer in time; says where its log is."""


class Program:
    """A program with all of its processes.

    Attributes:
      ready_s: seconds from process start until `ready` said yes.
    """

    def __init__(
        self,
        command: Sequence[str],
        ready: Callable[[], bool],
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Starts it and waits.

        Args:
          command: what is run, from the current directory.
          ready: whether it answers.
          log: where its output goes.
          environment: beside the own one.
        Raises:
          NotStarted: it ended or is not ready after 120 s.
        """
        self._log = log.open("wb")
        began = time.perf_counter()
        self._process = subprocess.Popen(
            command,
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        while not ready():
            if self._process.poll() is not None or time.perf_counter() - began > READY_WITHIN_S:
                self.close()
                raise NotStarted(f"{Path(command[0]).name} does not answer; see {log}")
            time.sleep(LOOK_EVERY_S)
        self.ready_s = time.perf_counter() - began

    def _tree(self) -> list[psutil.Process]:
        try:
            root = psutil.Process(self._process.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def processes(self) -> int:
        """Returns how many processes it is."""
        return len(self._tree())

    def memory_bytes(self, of: str = "Pss") -> int:
        """Returns the proportional set size of all processes: pages they share counted once.

        Pages that others map, too, count in part: it is the program's own only while nobody else maps its files.

        Args:
          of: `Pss`, or a part of it: `Pss_Anon`, `Pss_File` (files are mapped around each page that is touched, as far
            as the page cache has them, and are given back when memory is short), `Pss_Shmem`.
        """
        return int(self._sum(lambda each: _rolled_up(each.pid, of)))

    def resident_bytes(self) -> int:
        """Returns the resident memory of all processes, pages they share counted each time."""
        return int(self._sum(lambda each: each.memory_info().rss))

    def cpu_s(self) -> float:
        """Returns the CPU seconds that all processes used so far."""
        return self._sum(lambda each: sum(each.cpu_times()[:2]))  # of user and system

    def _sum(self, read: Callable[[psutil.Process], float]) -> float:
        total = 0.0
        for each in self._tree():
            try:
                total += read(each)
            except (psutil.NoSuchProcess, OSError):  # ended meanwhile: some start helpers again and again
                continue
        return total

    def pause(self) -> None:
        """Stops it, so that it takes nothing from what is measured meanwhile."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Lets it run."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for each in self._tree():
            try:
                each.send_signal(number)
            except psutil.NoSuchProcess:
                continue

    def close(self) -> None:
        """Ends all processes; those that do not within 30 s are killed."""
        self.go_on()
        tree = self._tree()
        if self._process.poll() is None:
            self._process.terminate()
        _, alive = psutil.wait_procs(tree, timeout=30)
        for each in alive:
            each.kill()
        self._process.wait(30)
        self._log.close()


def _rolled_up(process: int, part: str) -> int:
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]
    found = {name: value for name, _, value in (line.partition(":") for line in lines)}
    return int(found[part].split()[0]) * 1024 if part in found else 0  # of a process that has ended there is no more


class Service(Program):
    """A `rowcast-serve` over a root of bundles.

    Attributes:
      http, grpc: its ports.
    """

    def __init__(self, root: Path, precision: str, scratch: Path, *options: str) -> None:
        """Starts it, on free ports.

        Args:
          root: its bundles.
          precision: of its towers.
          scratch: where its log and its file of ports go.
          options: further ones.
        Raises:
          NotStarted: it ended or is not ready after 120 s.
        """
        name = "-".join((precision, *(each.strip("-") for each in options)))
        self._ports = scratch / f"ports-{name}.json"
        self._ports.unlink(missing_ok=True)
        given = ["--root", str(root), "--precision", precision, "--http-port", "0", "--grpc-port", "0", *options]
        program = [str(Path(sys.executable).parent / "rowcast-serve"), *given, "--ports-file", str(self._ports)]
        super().__init__(program, self._ready, scratch / f"serve-{name}.log", installed())

    def _ready(self) -> bool:
        if not self._ports.exists():
            return False
        found = json.loads(self._ports.read_text())
        self.http, self.grpc = found["http"], found["grpc"]
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self.http}/readyz", timeout=5)
        except (urllib.error.URLError, OSError):
            return False
        return True
