"""What the tests of running services send to them and read of them."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from typer.testing import CliRunner

from service.cli.serve import command
from tests.bundles.small import SmallBundle
from tests.e2e.process import WAIT_S, Process, until
from tests.units.service import reference

Write = Callable[..., SmallBundle]
Launch = Callable[..., Process]
RETRIEVE = "/v1/models/movies:retrieve"
BODY = {"context": {"user": 3}, "k": 2}


@contextmanager
def launching(root: Path) -> Iterator[Launch]:
    """Starts `rowcast-serve` over a root at each call; kills all of them at the end."""
    started: list[Process] = []

    def launch(*options: str, **variables: str) -> Process:
        started.append(Process(root, *options, variables=variables))
        return started[-1]

    yield launch
    for service in started:
        service.kill()


@contextmanager
def client_of(
    service: Process, token: str = "", trusted: Path | None = None
) -> Iterator[httpx.Client]:
    """A client of a service that listens already."""
    url = f"{'http' if trusted is None else 'https'}://127.0.0.1:{service.ports['http']}"
    verify = trusted is not None and ssl.create_default_context(cafile=str(trusted))
    headers = {"authorization": f"Bearer {token}"} if token else {}
    with httpx.Client(base_url=url, verify=verify, headers=headers, timeout=WAIT_S) as client:
        yield client


def is_ready(client: httpx.Client) -> bool:
    return client.get("/readyz").status_code == 200


def versions_of(service: Process, path: str = "movies") -> set[int | None]:
    """Returns the versions that respond to requests on connections of their own, which reach every
    worker.
    """
    call = f"/v1/models/{path}:retrieve"
    alone = {"connection": "close"}
    with client_of(service) as client:
        return {client.post(call, json=BODY, headers=alone).json().get("version") for _ in range(8)}


def count_of(service: Process, sample: str) -> float:
    lines = httpx.get(
        f"{health_url(service)}/metrics", timeout=WAIT_S, verify=False
    ).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(sample))


def health_url(service: Process) -> str:
    """The base URL of health checks and metrics."""
    return f"http://127.0.0.1:{service.ports['health']}"


def wait_for(service: Process, workers: str) -> None:
    """Waits until every worker is ready: each reports only itself."""
    service.event("listening")
    wait_for_workers(service, int(workers))


def wait_for_workers(service: Process, workers: int) -> None:
    """Waits until this number of workers run and all of them are ready."""
    until(
        lambda: (
            count_of(service, "rowcast_workers") == workers
            and count_of(service, "rowcast_ready") == 1
        )
    )


def workers_of(service: Process) -> list[psutil.Process]:
    return [child for child in psutil.Process(service.process.pid).children() if is_worker(child)]


def run_directory_of(service: Process) -> Path:
    """Returns where the workers keep their metrics."""
    return Path(workers_of(service)[0].environ()["PROMETHEUS_MULTIPROC_DIR"])


def is_worker(child: psutil.Process) -> bool:
    try:
        return child.status() != psutil.STATUS_ZOMBIE and "spawn_main" in str(child.cmdline())
    except psutil.NoSuchProcess:  # it has ended since it was listed
        return False


def ctl(service: Process, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a command of operators, in this process."""
    line = ["ctl", "--ports-file", str(service.ports_file), "--json", *arguments]
    done = CliRunner().invoke(command(), line)
    return subprocess.CompletedProcess(line, done.exit_code, done.stdout, done.stderr)


def nearest(small: SmallBundle) -> list[tuple[Any, float]]:
    return reference.neighbors(small, reference.query_vector(small, 3), 2)


def assert_found(actual: Mapping[str, Any], expected: list[tuple[Any, float]]) -> None:
    assert actual["ids"] == [movie for movie, _ in expected]
    assert actual["scores"] == pytest.approx([score for _, score in expected], 1e-4)
