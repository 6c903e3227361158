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

READY_S = 120
STOP_S = 30


class ServiceFailed(Exception):
    """The service did not become ready or ended by itself; the message names its log."""


@dataclass(frozen=True)
class Service:
    """A running service, its addresses, and the file of its ports."""

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
    """Runs `rowcast-serve` on free ports until the `with` ends; entered when `version` of `model`
    is served; None: any.

    Raises:
      ServiceFailed: it ended by itself, or was not ready in time.
    """
    ports = log.with_name("ports.json")
    ports.unlink(missing_ok=True)
    given = ["--root", str(root), "--require", model, "--ports-file", str(ports), *options]
    given += ["--http-port", "0", "--grpc-port", "0", "--admin-port", "0"]
    with log.open("wb") as stderr:
        process = subprocess.Popen([program("rowcast-serve"), *given], stdout=stderr, stderr=stderr)
    try:
        page = "/readyz" if version is None else f"/v1/models/{model}/versions/{version}"
        http, grpc = _ready(process, ports, page, log)
        yield Service(process, http, grpc, ports)
        if process.poll() not in (None, -signal.SIGKILL):  # which a caller may send
            raise ServiceFailed(f"the service ended with {process.returncode}; read {log}")
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _ready(process: subprocess.Popen[bytes], ports: Path, page: str, log: Path) -> tuple[str, str]:
    end = time.monotonic() + READY_S
    while time.monotonic() < end:
        if process.poll() is not None:
            raise ServiceFailed(f"the service ended with {process.returncode}; read {log}")
        if ports.exists():
            bound = json.loads(ports.read_text())
            http = f"http://127.0.0.1:{bound['http']}"
            if _found(f"{http}/readyz") and _found(http + page):
                return http, f"grpc://127.0.0.1:{bound['grpc']}"
        time.sleep(0.05)
    raise ServiceFailed(f"the service was not ready after {READY_S} s; read {log}")


def _found(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def tensorflow_mapped(process: subprocess.Popen[bytes]) -> bool | None:
    """Returns whether TensorFlow's library is in the service's memory; None where the system does
    not say.
    """
    directories = _processes(process)
    if not directories:
        return None
    return any("libtensorflow" in (each / "maps").read_text() for each in directories)


def resident_bytes(process: subprocess.Popen[bytes]) -> int | None:
    """Returns the memory that the service holds, its mapped files included; None where the system
    does not say.
    """
    directories = _processes(process)
    if not directories:
        return None
    pages = sum(int((each / "statm").read_text().split()[1]) for each in directories)
    return pages * os.sysconf("SC_PAGE_SIZE")


def _processes(process: subprocess.Popen[bytes]) -> list[Path]:
    """Returns the directories under /proc of the supervisor and its children; none where the system
    has no /proc.
    """
    supervisor = Path(f"/proc/{process.pid}")
    lists = [path.read_text() for path in supervisor.glob("task/*/children")]
    children = [Path(f"/proc/{pid}") for text in lists for pid in text.split()]
    return [supervisor, *children] if lists else []
