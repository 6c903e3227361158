"""`python -m benchmarks.soak.proxies`: nginx and HAProxy of this host, as deploy/ configures them,
before two services.

Clients call over HTTP and gRPC through each proxy while a worker of one service leaves or is
killed, and while that service is drained and restarted. Then hostile clients come. Exit code 1: a
request failed that the proxy, or the retry policy of gRPC clients, could have repeated on the other
service, or a hostile client exceeded its bounds. What is not installed is left out.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import grpc
import httpx
import psutil
from rich.console import Console

from benchmarks.soak.hostile_clients import ATTACKS
from benchmarks.soak.publishing import MODEL
from benchmarks.soak.switches import PROTOBUF, REQUESTS, kept_towers
from service.grpc_api.servicer import SERVICE
from tests.bundles.small import write_small_bundle
from tests.e2e.process import WAIT_S, Process, until
from tests.e2e.services import workers_of

DEPLOY = Path(__file__).parents[2] / "deploy"
PAGE = DEPLOY.with_name("docs") / "how-to" / "clients-and-proxies.md"
CALLERS = 4
"""Over each transport."""
AROUND_S = 1.5
"""Of load before and after each event: health checks come every second."""
SHOW = Console(highlight=False, soft_wrap=True)
BODY = REQUESTS["retrieve"].SerializeToString()
PROXIES = {"nginx": "nginx.conf", "haproxy": "haproxy.cfg"}
"""Program -> its configuration."""
UNREPEATED = {
    ("worker_is_killed", "http"): "RemoteProtocolError",
    ("worker_is_killed", "grpc"): "UNAVAILABLE",
    ("drains", "grpc"): "UNAVAILABLE",
}
"""The failures that nothing repeats, by event and transport: of a response that had begun, and of a
service that is drained, until its health is checked.
"""
HOSTILE_CLIENTS = {attack.__name__: attack for attack in ATTACKS}


class Ports(NamedTuple):
    """The ports of one service."""

    http: int
    grpc: int
    admin: int
    health: int


class Services:
    """Two services over one root, on ports that they keep."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.ports = [Ports(*(free_port() for _ in Ports._fields)) for _ in range(2)]
        self.running = [self._start(index) for index in range(2)]

    def _start(self, index: int) -> Process:
        options = {
            "--workers": 2,
            "--http-port": self.ports[index].http,
            "--grpc-port": self.ports[index].grpc,
            "--admin-port": self.ports[index].admin,
            "--health-port": self.ports[index].health,
            "--state-file": self._root.parent / f"state-{index}.json",
            "--drain-delay-s": 3,  # proxies look every second
        }
        service = Process(self._root, *[str(part) for pair in options.items() for part in pair])
        service.event("listening")
        return service

    def worker_leaves(self) -> None:
        """Has one worker drain and leave."""
        workers_of(self.running[0])[0].terminate()

    def worker_is_killed(self) -> None:
        """Ends one worker."""
        workers_of(self.running[0])[0].kill()

    def drains(self) -> None:
        """Has one service reject requests for a while."""
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

    def processes(self) -> list[psutil.Process]:
        """Returns all processes of both."""
        parents = [psutil.Process(program.process.pid) for program in self.running]
        return [*parents, *(child for parent in parents for child in parent.children())]

    def _ctl(self, command_name: str) -> None:
        program = Path(self.running[0].process.args[0])  # type: ignore[index, arg-type]
        command = [
            str(program),
            "ctl",
            "--admin",
            f"http://127.0.0.1:{self.ports[0].admin}",
            command_name,
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=WAIT_S)


def free_port() -> int:
    """Returns a port that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _with_ports(line: str, ports: Ports) -> str:
    """Returns a line of a configuration with the ports of a service instead of the usual ones."""
    line = re.sub(r"\b8080\b", str(ports.http), line)
    line = re.sub(r"\b9090\b", str(ports.grpc), line)
    return re.sub(r"\bport 8081\b", f"port {ports.health}", line)


def configuration(text: str, services: Services, http_port: int, grpc_port: int) -> str:
    """Returns a configuration of deploy/ with these ports, and every server that it has for each
    service.
    """
    lines = []
    for line in text.splitlines():
        if "server" in line and ("127.0.0.1:8080" in line or "127.0.0.1:9090" in line):
            for index, ports in enumerate(services.ports):
                named = line.replace("server one", f"server number-{index}")
                lines.append(_with_ports(named, ports))
        else:
            lines.append(re.sub(r"(listen |bind :)8000\b", rf"\g<1>{http_port}", line))
            lines[-1] = re.sub(r"(listen |bind :)9000\b", rf"\g<1>{grpc_port}", lines[-1])
    return "\n".join(lines) + "\n"


@contextmanager
def proxy(program: str, services: Services, directory: Path) -> Iterator[tuple[int, int]]:
    """Runs a proxy before both services; yields its ports of HTTP and gRPC."""
    ports = free_port(), free_port()
    file = directory / PROXIES[program]
    file.write_text(configuration((DEPLOY / file.name).read_text(), services, *ports))
    options = ["-db", "-f", str(file)]
    if program == "nginx":
        options = [
            "-c",
            str(file),
            "-g",
            f"daemon off; pid {directory}/nginx.pid; error_log {directory}/nginx.log;",
        ]
    with (directory / f"{program}.out").open("w") as output:
        running = subprocess.Popen([program, *options], stdout=output, stderr=output)
    try:
        until(lambda: is_ready(ports[0]))
        yield ports
    finally:
        running.terminate()
        running.wait(WAIT_S)


def is_ready(http_port: int) -> bool:
    """Returns whether the service is ready behind a port."""
    with suppress(httpx.HTTPError):
        return httpx.get(f"http://127.0.0.1:{http_port}/readyz", timeout=WAIT_S).status_code == 200
    return False


def service_config() -> str:
    """Returns the policy that the page of proxies gives to gRPC clients, for a single address."""
    page = PAGE.read_text()
    policy = re.search(r"gRPC service config -->\n```json\n(.+?)\n```", page, re.DOTALL)
    if policy is None:
        raise RuntimeError(f"{PAGE} has no service config")
    settings = json.loads(policy[1])
    del settings["healthCheckConfig"]
    return json.dumps(settings)


def calls_during(ports: tuple[int, int], event: Callable[[], None]) -> dict[str, Counter[str]]:
    """Calls over both transports while something happens; returns what came, by transport."""
    over = threading.Event()
    came: dict[str, Counter[str]] = {"http": Counter(), "grpc": Counter()}

    def call_http() -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{ports[0]}", timeout=WAIT_S) as client:
            while not over.is_set():
                try:
                    status = client.post(
                        f"/v1/models/{MODEL}:retrieve", content=BODY, headers=PROTOBUF
                    ).status_code
                except httpx.HTTPError as problem:
                    came["http"][type(problem).__name__] += 1
                else:
                    came["http"][str(status)] += 1

    def call_grpc() -> None:
        options = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.service_config", service_config()),
        ]
        with grpc.insecure_channel(f"127.0.0.1:{ports[1]}", options) as channel:
            call = channel.unary_unary(f"/{SERVICE}/Retrieve")
            while not over.is_set():
                came["grpc"][call.future(BODY, timeout=WAIT_S).code().name] += 1

    with ThreadPoolExecutor(2 * CALLERS) as callers:
        jobs = [callers.submit(call) for call in (call_http, call_grpc) for _ in range(CALLERS)]
        try:
            time.sleep(AROUND_S)
            event()
            time.sleep(2 * AROUND_S)
        finally:
            over.set()
        for job in jobs:
            job.result()
    return came


def soak(programs: Sequence[str], hostile: Sequence[str]) -> int:
    """Runs everything, and the hostile clients of these names, behind every proxy; returns the
    exit code.
    """
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "bundles"
        root.mkdir()
        write_small_bundle(root, kept_towers(), MODEL, 1)
        services = Services(root)
        try:
            for program in programs:
                with proxy(program, services, Path(directory)) as ports:
                    problems += events(program, services, ports)
                    problems += attacks(program, services, ports, hostile)
        finally:
            services.close()
    for problem in problems:
        SHOW.print("FAILED:", problem)
    return 1 if problems else 0


def events(program: str, services: Services, ports: tuple[int, int]) -> list[str]:
    """Has workers and services leave and return; returns which requests failed."""
    problems = []
    for event in (
        services.worker_leaves,
        services.worker_is_killed,
        services.drains,
        services.restarts,
    ):
        for transport, came in calls_during(ports, event).items():
            failed = came.total() - came["200"] - came["OK"]
            what = f"{program}, {event.__name__}, {transport}: {failed} of {came.total()} failed"
            SHOW.print(what, dict(came) if failed else "")
            unrepeated = UNREPEATED.get((event.__name__, transport), "")
            if failed > came[unrepeated]:
                problems.append(what)
    return problems


def attacks(
    program: str, services: Services, ports: tuple[int, int], hostile: Sequence[str]
) -> list[str]:
    """Lets hostile clients in; returns which bounds they exceeded."""
    problems = []
    for name in hostile:
        for transport, port in zip(("http", "grpc"), ports, strict=True):
            found = HOSTILE_CLIENTS[name](port, services.processes(), ports[0])
            what = f"{program}, {name}, {transport}"
            SHOW.print(f"{what}: {found}")
            problems += [f"{what}: {problem}" for problem in found.problems()]
    return problems


def main() -> int:
    """Reads the arguments and runs."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--proxy", action="append", choices=PROXIES, help="repeatable")
    arguments.add_argument("--hostile", nargs="*", choices=HOSTILE_CLIENTS, help="default: all")
    options = arguments.parse_args()
    programs = [program for program in options.proxy or PROXIES if shutil.which(program)]
    SHOW.print(f"behind {', '.join(programs) or 'no proxy: none is installed'}")
    hostile = [*HOSTILE_CLIENTS] if options.hostile is None else options.hostile
    return soak(programs, hostile) if programs else 0


if __name__ == "__main__":
    sys.exit(main())
