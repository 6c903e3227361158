"""A running `rowcast-serve` to be measured: start, time to ready, memory, CPU; stopped while others are measured."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil

READY_WITHIN_S = 60


class Service:
    """One service process over a root of bundles.

    Attributes:
      http, grpc: its ports.
      ready_s: seconds from process start until `/readyz` said yes.
    """

    def __init__(self, root: Path, precision: str, scratch: Path) -> None:
        ports = scratch / f"ports-{precision}.json"
        ports.unlink(missing_ok=True)
        options = ["--root", str(root), "--precision", precision, "--http-port", "0", "--grpc-port", "0"]
        # A generator that shares the cores sends in bursts when it is late: they are to wait here, not to be refused.
        options += ["--in-flight-max", "1024"]
        program = [str(Path(sys.executable).parent / "rowcast-serve"), *options, "--ports-file", str(ports)]
        self._log = (scratch / f"serve-{precision}.log").open("wb")
        began = time.perf_counter()
        self._process = subprocess.Popen(program, stdout=self._log, stderr=self._log)
        self._wait(ports, began)
        self.ready_s = time.perf_counter() - began
        self._seen = psutil.Process(self._process.pid)

    def _wait(self, ports: Path, began: float) -> None:
        while time.perf_counter() - began < READY_WITHIN_S:
            if self._process.poll() is not None:
                break
            if ports.exists():
                found = json.loads(ports.read_text())
                self.http, self.grpc = found["http"], found["grpc"]
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{self.http}/readyz", timeout=5)
                except (urllib.error.URLError, OSError):
                    pass
                else:
                    return
            time.sleep(0.005)
        raise RuntimeError(f"the service is not ready after {READY_WITHIN_S} s; see {self._log.name}")

    def memory_bytes(self) -> int:
        """Proportional set size: shared pages counted by share."""
        return int(self._seen.memory_full_info().pss)

    def cpu_s(self) -> float:
        """CPU seconds used so far."""
        used = self._seen.cpu_times()
        return float(used.user + used.system)

    def pause(self) -> None:
        """Stops the process, so that it takes nothing from what is measured meanwhile."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Lets a paused process run."""
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Drains and ends the service."""
        self.go_on()
        self._process.terminate()
        self._process.wait(30)
        self._log.close()
