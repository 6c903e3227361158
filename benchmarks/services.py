"""Running services to be measured: start, time to the first response, memory, CPU; stopped while
others are measured.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks import workload_files
from benchmarks.workload_files import WorkloadFiles

HERE = Path(__file__).parents[1]
READY_WITHIN_S = 120
LOOK_EVERY_S = 0.005
BYTECODE = Path("build/bench/bytecode")
"""Compiled modules of each checkout, which an installed package has."""


class NotStarted(Exception):
    """A program ended, or did not respond in time; the message names its log."""


class Program:
    """A program with all of its processes.

    Attributes:
      ready_s: The seconds from process start until `ready` returned true.
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
          command: The command, which runs in the current directory.
          ready: Returns whether the program responds.
          log: The file of the program's output.
          environment: Variables beside those of this process.
        Raises:
          NotStarted: The program ended, or is not ready after 120 s.
        """
        self._log = log.open("wb")
        began = time.perf_counter()
        everything = {**os.environ, **(environment or {})}
        self._process = subprocess.Popen(
            command, stdout=self._log, stderr=self._log, env=everything, start_new_session=True
        )
        while not ready():
            if self._process.poll() is not None or time.perf_counter() - began > READY_WITHIN_S:
                self.close()
                raise NotStarted(f"{Path(command[0]).name} did not become ready; see {log}")
            time.sleep(LOOK_EVERY_S)
        self.ready_s = time.perf_counter() - began

    def _tree(self) -> list[psutil.Process]:
        try:
            root = psutil.Process(self._process.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def memory_bytes(self) -> int:
        """Returns the proportional set size of all processes: pages that they share are counted
        once.
        """
        return int(self._sum(lambda process: process.memory_full_info().pss))

    def cpu_s(self) -> float:
        """Returns the CPU seconds that all processes used so far."""
        return self._sum(lambda process: sum(process.cpu_times()[:2]))  # of user and system

    def _sum(self, read: Callable[[psutil.Process], float]) -> float:
        total = 0.0
        for process in self._tree():
            try:
                total += read(process)
            except (psutil.NoSuchProcess, OSError):  # ended meanwhile
                continue
        return total

    def pause(self) -> None:
        """Stops it, so that it takes nothing from what is measured meanwhile."""
        _signal(self._tree(), signal.SIGSTOP)

    def resume(self) -> None:
        """Lets it run."""
        # The first process last: a supervisor replaces workers that stand still.
        _signal(reversed(self._tree()), signal.SIGCONT)

    def close(self) -> None:
        """Ends all processes; those that do not end within 30 s are killed."""
        self.resume()
        tree = self._tree()
        if self._process.poll() is None:
            self._process.terminate()
        _, alive = psutil.wait_procs(tree, timeout=30)
        for process in alive:
            process.kill()
        self._process.wait(30)
        self._log.close()


def _signal(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue


@dataclass(frozen=True)
class Checkout:
    """A version of rowcast: a directory with its sources, such as a git worktree.

    Attributes:
      name: Its name in tables.
      directory: Its directory.
      deltas: The number of deltas of each segment of the tables that its service reads.
    """

    name: str
    directory: Path = HERE
    deltas: int = 0

    def command(self) -> list[str]:
        """Returns what runs its `rowcast-serve`, as its pyproject.toml names it, with
        `environment`.
        """
        scripts = tomllib.loads((self.directory / "pyproject.toml").read_text())["project"][
            "scripts"
        ]
        module, _, function = scripts["rowcast-serve"].partition(":")
        program = (
            f"import sys; sys.argv[0] = 'rowcast-serve'; from {module} import {function}; "
            f"{function}()"
        )
        return [sys.executable, "-P", "-c", program]  # -P: not from the current directory

    @property
    def environment(self) -> dict[str, str]:
        """Its sources before the installed ones, and its compiled modules."""
        bytecode = (BYTECODE / self.directory.resolve().as_posix().replace("/", "-")).resolve()
        bytecode.mkdir(parents=True, exist_ok=True)
        path = str(self.directory.resolve())
        return {
            "PYTHONPATH": path,
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": str(bytecode),
        }

    def write_workloads(self, root: Path, scale: float) -> WorkloadFiles:
        """Compiles its row reads, and has its own code write the bundles and the bodies below a
        directory.
        """
        python = [sys.executable, "-P"]
        everything = os.environ | self.environment
        for command in (
            [*python, "hatch_build.py"],
            [*python, workload_files.__file__, str(root.resolve()), f"{scale:g}"],
        ):
            subprocess.run(command, check=True, cwd=self.directory, env=everything)
        return workload_files.read(root)

    @property
    def has_health_address(self) -> bool:
        """Whether its service has an address for health checks alone."""
        config = self.directory / "service" / "config.py"
        return config.exists() and "health_port" in config.read_text()

    def commit(self) -> str:
        """Returns its commit; a plus sign: with changes."""
        git = ["git", "-C", str(self.directory)]
        commit = subprocess.run(
            [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
        )
        changes = subprocess.run(
            [*git, "status", "--porcelain", "-uno"], capture_output=True, check=False
        ).stdout
        return commit.stdout.strip() + ("+" if changes else "") or str(self.directory)


ANSWERS_READY = 16
"""On connections of their own, which reach every worker: each says only of itself that it is ready.
"""


class Service(Program):
    """A `rowcast-serve` over a root of bundles, on free ports.

    Attributes:
      http, grpc: The ports of both endpoints.
      health: The port of the health checks; an old service has them at its HTTP port.
      admin: The port of the admin API.
    """

    def __init__(
        self, checkout: Checkout, root: Path, scratch: Path, precision: str, *options: str
    ) -> None:
        """Starts it; `scratch` is for its log and its file of ports. Raises as Program does."""
        name = "-".join((checkout.name, precision, *(option.strip("-") for option in options)))
        name = name.replace("/", "-")
        self._ports = scratch.resolve() / f"ports-{name}.json"
        self._ports.unlink(missing_ok=True)
        given = [
            "--root",
            str(root.resolve()),
            "--precision",
            precision,
            "--ports-file",
            str(self._ports),
            *options,
        ]
        given += ["--http-port", "0", "--grpc-port", "0", "--admin-port", "0"]
        if checkout.has_health_address:
            given += ["--health-port", "0"]
        command = [*checkout.command(), *given]
        super().__init__(command, self._ready, scratch / f"serve-{name}.log", checkout.environment)

    def _ready(self) -> bool:
        if not self._ports.exists():
            return False
        ports = json.loads(self._ports.read_text())
        self.http = ports["http"]
        self.grpc = ports["grpc"]
        self.health = ports.get("health", self.http)
        self.admin = ports["admin"]
        try:
            for _ in range(ANSWERS_READY):
                urllib.request.urlopen(f"http://127.0.0.1:{self.http}/readyz", timeout=5)
        except (urllib.error.URLError, OSError):
            return False
        return True
