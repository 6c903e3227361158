"""`python -m tests.soak.proxies`: nginx and HAProxy of this machine, as deploy/ configures them, before two services.

Callers ask at both doors through each proxy while a worker of one service leaves or is killed, and while that service
is drained and restarted. Ends with 1 where a call fails that this proxy could have repeated elsewhere: those over HTTP,
and through HAProxy those of gRPC too, but for what a drained service refuses until it is asked for its health. What is
not installed is left out.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
import httpx
import psutil
from rich.console import Console

from service.rpc.servicer import SERVICE
from tests.service.process import PATIENCE_S, Process, until
from tests.service.small_bundle import compiled_towers, write_small_bundle
from tests.soak.publishing import MODEL
from tests.soak.switches import PROTOBUF, REQUESTS

DEPLOY = Path(__file__).parents[2] / "deploy"
CALLERS = 4
"""At each door."""
AROUND_S = 1.5
"""Of load before and behind each event: health checks come every second."""
SHOW = Console(highlight=False, soft_wrap=True)
BODY = REQUESTS["retrieve"].SerializeToString()
PROXIES = {"nginx": ("nginx.conf", ("http",)), "haproxy": ("haproxy.cfg", ("http", "grpc"))}
"""Program -> its configuration, and the doors at which it loses no call."""


class Services:
    """Two services over one root, each on ports of its own that it keeps."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.ports = [(free_port(), free_port(), free_port()) for _ in range(2)]
        self.running = [self._start(index) for index in range(2)]

    def _start(self, index: int) -> Process:
        http, grpc_port, admin = map(str, self.ports[index])
        place = ("--state-file", str(self._root.parent / f"state-{index}.json"), "--admin-port", admin)
        service = Process(self._root, "--workers", "2", "--http-port", http, "--grpc-port", grpc_port, *place)
        service.event("listening")
        return service

    def worker_leaves(self) -> None:
        """Has one worker go, in good order."""
        self._worker().terminate()

    def worker_is_killed(self) -> None:
        """Ends one worker."""
        self._worker().kill()

    def drains(self) -> None:
        """Has one service refuse calls for a while."""
        self._ctl("drain")
        time.sleep(AROUND_S)
        self._ctl("undrain")

    def restarts(self) -> None:
        """Ends one service and starts it again."""
        self.running[0].stop()
        self.running[0].kill()
        self.running[0] = self._start(0)

    def close(self) -> None:
        """Ends both."""
        for service in self.running:
            service.stop()
            service.kill()

    def _worker(self) -> psutil.Process:
        return psutil.Process(self.running[0].process.pid).children()[0]

    def _ctl(self, order: str) -> None:
        program = Path(self.running[0].process.args[0])  # type: ignore[index, arg-type]
        command = [str(program), "ctl", "--admin", f"http://127.0.0.1:{self.ports[0][2]}", order]
        subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S)


def free_port() -> int:
    """Returns a port that nobody listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def configuration(text: str, services: Services, http_port: int, grpc_port: int) -> str:
    """Returns a configuration of deploy/ with these ports, and every server that it has for each service."""
    lines = []
    for line in text.splitlines():
        if "server" in line and ("127.0.0.1:8080" in line or "127.0.0.1:9090" in line):
            for index, (http, rpc, _) in enumerate(services.ports):
                named = line.replace("server one", f"server number-{index}")
                lines.append(re.sub(r"\b8080\b", str(http), re.sub(r"\b9090\b", str(rpc), named)))
        else:
            lines.append(re.sub(r"(listen |bind :)8000\b", rf"\g<1>{http_port}", line))
            lines[-1] = re.sub(r"(listen |bind :)9000\b", rf"\g<1>{grpc_port}", lines[-1])
    return "\n".join(lines) + "\n"


@contextmanager
def proxy(program: str, services: Services, directory: Path) -> Iterator[tuple[int, int]]:
    """Runs a proxy before both services; yields its ports of HTTP and gRPC."""
    ports = free_port(), free_port()
    file = directory / PROXIES[program][0]
    file.write_text(configuration((DEPLOY / file.name).read_text(), services, *ports))
    options = ["-db", "-f", str(file)]
    if program == "nginx":
        options = ["-c", str(file), "-g", f"daemon off; pid {directory}/nginx.pid; error_log {directory}/nginx.log;"]
    with (directory / f"{program}.out").open("w") as told:
        running = subprocess.Popen([program, *options], stdout=told, stderr=told)
    try:
        until(lambda: answers(ports[0]))
        yield ports
    finally:
        running.terminate()
        running.wait(PATIENCE_S)


def answers(http_port: int) -> bool:
    """Tells whether the service is ready behind a port."""
    with suppress(httpx.HTTPError):
        return httpx.get(f"http://127.0.0.1:{http_port}/readyz", timeout=PATIENCE_S).status_code == 200
    return False


def asked(ports: tuple[int, int], event: Callable[[], None]) -> dict[str, Counter[str]]:
    """Asks at both doors while something happens; returns by door what came."""
    over = threading.Event()
    came: dict[str, Counter[str]] = {"http": Counter(), "grpc": Counter()}

    def ask_http() -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{ports[0]}", timeout=PATIENCE_S) as client:
            while not over.is_set():
                try:
                    status = client.post(f"/v1/models/{MODEL}:retrieve", content=BODY, headers=PROTOBUF).status_code
                except httpx.HTTPError as problem:
                    came["http"][type(problem).__name__] += 1
                else:
                    came["http"][str(status)] += 1

    def ask_grpc() -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(f"127.0.0.1:{ports[1]}", options) as channel:
            ask = channel.unary_unary(f"/{SERVICE}/Retrieve")
            while not over.is_set():
                came["grpc"][ask.future(BODY, timeout=PATIENCE_S).code().name] += 1

    with ThreadPoolExecutor(2 * CALLERS) as callers:
        jobs = [callers.submit(ask) for ask in (ask_http, ask_grpc) for _ in range(CALLERS)]
        try:
            time.sleep(AROUND_S)
            event()
            time.sleep(2 * AROUND_S)
        finally:
            over.set()
        for job in jobs:
            job.result()
    return came


def soak(programs: Sequence[str]) -> int:
    """Runs every event behind every proxy; returns the exit code."""
    lost = 0
    with tempfile.TemporaryDirectory() as place:
        root = Path(place) / "bundles"
        root.mkdir()
        write_small_bundle(root, compiled_towers(Path(place)), MODEL, 1)
        services = Services(root)
        try:
            for program in programs:
                with proxy(program, services, Path(place)) as ports:
                    for event in (
                        services.worker_leaves,
                        services.worker_is_killed,
                        services.drains,
                        services.restarts,
                    ):
                        for door, came in asked(ports, event).items():
                            failed = came.total() - came["200"] - came["OK"]
                            held = door in PROXIES[program][1] and (door, event) != ("grpc", services.drains)
                            lost += failed if held else 0
                            told = "" if held or not failed else ", which this proxy does not repeat"
                            SHOW.print(f"{program}, {event.__name__}, {door}: {failed} of {came.total()} failed{told}")
                            if failed:
                                SHOW.print(f"  {dict(came)}")
        finally:
            services.close()
    return 1 if lost else 0


if __name__ == "__main__":
    installed = [program for program in PROXIES if shutil.which(program)]
    SHOW.print(f"behind {', '.join(installed) or 'no proxy: none is installed'}")
    raise SystemExit(soak(installed) if installed else 0)
