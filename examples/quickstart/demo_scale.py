"""The bundle of the quick start on two routers and two replicas of each of two shards, beside one
process: same responses.

Run by `make demo-scale`, or `python -m examples.quickstart.demo_scale` from the root of a clone: on
a Ray cluster of this machine. With `--plain` it runs as plain processes, which need no Ray.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from examples import served
from examples.quickstart.__main__ import BUNDLES, MODEL, VERSION
from examples.quickstart.ray_cluster import RayFailed, ray_cluster

SHARDS = 2
REPLICAS = 2
ROUTERS = 2
ALL = ("--shard-min-bytes", "1")
"""Puts all tables on shards, however small. In production only tables that fit no machine are."""
AROUND_S = 2.0
"""Time of the requests before and after a shard is killed."""
RETRY_S = 2.0
"""Time in which a request that finds the service not ready is sent again."""
VIEWER = '{{"user_id": {0}, "history": [{0}, 5, 12, 31], "hour": 20}}'
CALLS = {
    "retrieve": '{{"context": {0}, "k": 10, "attributes": ["title"]}}',
    "recommend": '{{"context": {0}, "k": 10}}',
    "rank": '{{"context": {0}, "candidate_ids": [1, 2, 3, 5, 8, 13, 21, 34, 55, 89]}}',
}
REQUESTS = [
    (call, body.format(VIEWER.format(user)).encode())
    for user in range(1, 41)
    for call, body in CALLS.items()
]


@dataclass(frozen=True)
class Cluster:
    """Running routers and shards.

    Attributes:
      routers: The URLs of the routers.
      topology: A function that returns a text with the shard and the tables of each address.
      victim: The process id of a replica of the first shard.
    """

    routers: Sequence[str]
    topology: Callable[[], str]
    victim: int


@contextmanager
def on_ray(_: Path) -> Iterator[Cluster]:
    """Runs shards and routers on Ray Serve until the `with` ends."""
    with ray_cluster(BUNDLES, SHARDS, REPLICAS, ROUTERS) as cluster:
        yield Cluster([cluster.router] * ROUTERS, cluster.topology, cluster.processes("shard-1")[0])


@contextmanager
def as_processes(scratch: Path) -> Iterator[Cluster]:
    """Runs shards, and routers with their addresses, until the `with` ends."""
    with ExitStack() as running:

        def start(name: str, version: int | None, *options: str) -> served.Service:
            (scratch / name).mkdir()
            log = scratch / name / "serve.log"
            return running.enter_context(
                served.serving(BUNDLES, MODEL, version, log, *options, *ALL)
            )

        replicas = []
        for number in range(1, SHARDS + 1):
            for replica in range(REPLICAS):
                name = f"shard-{number}-{replica}"
                replicas.append(start(name, None, "--shard", f"{number}/{SHARDS}"))
        addresses: list[str] = []
        for service in replicas:
            addresses += ["--shard-addresses", service.grpc.removeprefix("grpc://")]
        routers = [start(f"router-{number}", VERSION, *addresses) for number in range(ROUTERS)]
        yield Cluster(
            [router.http for router in routers],
            partial(topology, routers[0]),
            replicas[0].process.pid,
        )


def send(url: str, call: str, body: bytes) -> bytes:
    """Returns the body of a response, also of an error."""
    headers = {"content-type": "application/json"}
    end = time.monotonic() + RETRY_S
    request = urllib.request.Request(f"{url}/v1/models/{MODEL}:{call}", body, headers)
    while True:
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return bytes(response.read())
        except urllib.error.HTTPError as problem:
            # 503: a router has not reached all shards yet.
            if problem.code != 503 or time.monotonic() > end:
                return bytes(problem.read())
            time.sleep(0.1)


def repeat(router: str, expected: Sequence[bytes], done: threading.Event) -> Counter[bool]:
    """Sends all requests again and again; counts the responses by whether they equal those of one
    process.
    """
    counts = Counter[bool]()
    while not done.is_set():
        for request, body in zip(REQUESTS, expected, strict=True):
            counts[send(router, *request) == body] += 1
    return counts


def topology(router: served.Service) -> str:
    """Returns the shard and the tables of each address, as a router sees them."""
    options = ["ctl", "--ports-file", str(router.ports), "topology"]
    command = [served.program("rowcast-serve"), *options]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout


def demonstrate(scratch: Path, console: Console, plain: bool) -> bool:
    """Starts a cluster and compares its responses with one process while a shard is killed; returns
    whether all were the same.
    """
    (scratch / "alone").mkdir()
    with served.serving(BUNDLES, MODEL, VERSION, scratch / "alone" / "serve.log") as alone:
        expected = [send(alone.http, *request) for request in REQUESTS]
    console.print(f"one process: {len(expected)} responses; a cluster replaces it")
    done = threading.Event()
    cluster = as_processes if plain else on_ray
    with cluster(scratch) as running, ThreadPoolExecutor(ROUTERS) as threads:
        console.print(running.topology())
        callers = [threads.submit(repeat, router, expected, done) for router in running.routers]
        try:
            done.wait(AROUND_S)
            os.kill(running.victim, signal.SIGKILL)
            console.print(f"killed process {running.victim}, a replica of shard 1/{SHARDS}")
            done.wait(AROUND_S)
            console.print(running.topology())
        finally:
            done.set()
        counts = sum((caller.result() for caller in callers), Counter[bool]())
    console.print(
        f"{counts.total()} responses of {ROUTERS} routers: {counts[True]} equal those of one "
        "process, bit for bit"
    )
    return not counts[False]


def main() -> int:
    """Runs the demonstration; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m examples.quickstart.demo_scale")
    parser.add_argument(
        "--plain", action="store_true", help="plain processes instead of a Ray cluster"
    )
    plain = parser.parse_args().plain
    console = Console(highlight=False, soft_wrap=True)
    with tempfile.TemporaryDirectory() as scratch:
        try:
            is_equal = demonstrate(Path(scratch), console, plain)
            return 0 if is_equal else 1
        except RayFailed as problem:
            sys.stderr.write(f"{problem}\n")
            return 1
        except served.ServiceFailed as problem:
            sys.stderr.write(f"{problem}\n")
            # The message ends with the log, which is gone with the directory.
            log = Path(str(problem).rpartition("read ")[2])
            if log.exists():
                sys.stderr.write(log.read_text())
            return 1


if __name__ == "__main__":
    sys.exit(main())
