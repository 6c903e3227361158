"""A running service: started, inspected, and stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

READY_S = 300
"""Time in which a service must become ready."""
STOP_S = 30
"""Time in which a service must end after SIGTERM."""


class ServiceFailed(Exception):
    """The service did not become ready or ended by itself; the message names its log."""


@dataclass(frozen=True)
class Service:
    """A running service.

    Attributes:
      process: Its process.
      http: The URL of its HTTP endpoint.
      grpc: The URL of its gRPC endpoint.
      ports: The file to which it writes its ports.
    """

    process: subprocess.Popen[bytes]
    http: str
    grpc: str
    ports: Path


def program(name: str) -> str:
    """Returns the path of a command that is installed beside this Python."""
    return str(Path(sys.executable).with_name(name))


@contextmanager
def serving(
    root: Path, model: str, version: int | None, log: Path, *options: str
) -> Iterator[Service]:
    """Runs `rowcast-serve` on free ports until the `with` ends.

    Args:
      root: The directory of the bundles.
      model: The model that must be served.
      version: The version that must be served before the `with` begins; None: any version.
      log: The file to which the service writes its log.
      options: Further options of `rowcast-serve`.

    Raises:
      ServiceFailed: The service ended by itself, or was not ready in time.
    """
    ports = log.with_name("ports.json")
    ports.unlink(missing_ok=True)
    arguments = ["--root", str(root), "--require", model, "--ports-file", str(ports), *options]
    arguments += ["--http-port", "0", "--grpc-port", "0", "--admin-port", "0"]
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [program("rowcast-serve"), *arguments], stdout=stderr, stderr=stderr
        )
    try:
        path = "/readyz"
        if version is not None:
            path = f"/v1/models/{model}/versions/{version}"
        http, grpc = _ready(process, ports, path, log)
        yield Service(process, http, grpc, ports)
        # A caller may have sent SIGKILL.
        if process.poll() not in (None, -signal.SIGKILL):
            raise ServiceFailed(f"the service ended with {process.returncode}; read {log}")
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _ready(process: subprocess.Popen[bytes], ports: Path, path: str, log: Path) -> tuple[str, str]:
    """Waits until a path responds; returns the URLs of HTTP and gRPC."""
    end = time.monotonic() + READY_S
    while time.monotonic() < end:
        if process.poll() is not None:
            raise ServiceFailed(f"the service ended with {process.returncode}; read {log}")
        if ports.exists():
            bound = json.loads(ports.read_text())
            http = f"http://127.0.0.1:{bound['http']}"
            if _responds(f"{http}/readyz") and _responds(http + path):
                return http, f"grpc://127.0.0.1:{bound['grpc']}"
        time.sleep(0.05)
    raise ServiceFailed(f"the service was not ready after {READY_S} s; read {log}")


def _responds(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def tensorflow_mapped(process: subprocess.Popen[bytes]) -> bool | None:
    """Returns whether TensorFlow's library is in the service's memory; None where the system has no
    /proc.
    """
    directories = _processes(process)
    if not directories:
        return None
    return any("libtensorflow" in (directory / "maps").read_text() for directory in directories)


def resident_bytes(process: subprocess.Popen[bytes]) -> int | None:
    """Returns the resident memory of the service in bytes, its mapped files included; None where
    the system has no /proc.
    """
    directories = _processes(process)
    if not directories:
        return None
    pages = sum(int((directory / "statm").read_text().split()[1]) for directory in directories)
    return pages * os.sysconf("SC_PAGE_SIZE")


def _processes(process: subprocess.Popen[bytes]) -> list[Path]:
    """Returns the directories under /proc of the supervisor and its children; none where the system
    has no /proc.
    """
    supervisor = Path(f"/proc/{process.pid}")
    lists = [path.read_text() for path in supervisor.glob("task/*/children")]
    pids = " ".join(lists).split()
    if not lists:
        return []
    return [supervisor, *(Path(f"/proc/{pid}") for pid in pids)]
