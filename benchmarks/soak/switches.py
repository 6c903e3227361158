"""`python -m benchmarks.soak.switches`: versions published and rolled back at 70 % of the load that
a service bears.

No request fails, no response mixes two versions, and the memory of the service stays what it was.
Latencies are compared with those of blocks without a switch around them, in which the same files
are written outside the root. Nothing is rejected for lack of capacity: a busy host shows in the
latencies alone.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import psutil
from google.protobuf.message import Message
from rich.console import Console

from benchmarks import cores
from benchmarks.load import Endpoint, Load
from benchmarks.soak.blocks import Pressure, Round, compared, sent_and_failed
from benchmarks.soak.publishing import MODEL, Publisher
from service.codec.operations import OPERATIONS
from service.codec.stubs import embedding_service_pb2 as pb
from service.grpc_api.servicer import SERVICE
from tests.bundles.small import write_small_bundle
from tests.bundles.towers import compiled_towers
from tests.e2e.process import WAIT_S, Process, until

SETTLED_AFTER = 20
"""Number of versions after which memory must not grow any more."""
LOOK_EVERY = 8
"""Number of versions between two measurements of memory."""
LOOKS = 3
"""Of which the median counts, first and last: the interpreter allocates 1 MiB at a time."""
GROWTH_MAX = 0.02
DISTINCT = 8
"""Versions whose responses differ; later ones are one of them under another number."""
INTERVAL_S = 0.5
"""From one switch to the next, at least."""
SHOW = Console(highlight=False, soft_wrap=True)
USER = pb.Column(int64s=(5).to_bytes(8, "little"))
MOVIES = pb.Ids(int64s=b"".join((1000 + 7 * i).to_bytes(8, "little") for i in range(8)))
REQUESTS: dict[str, Message] = {
    "retrieve": pb.RetrieveRequest(k=5, context={"user": USER}, attributes=["title"]),
    "rank": pb.RankRequest(context={"user": USER}, candidate_ids=MOVIES),
    "recommend": pb.RecommendRequest(k=3, context={"user": USER}, attributes=["title"]),
    "embed": pb.EmbedRequest(tower="query", features={"user": USER}),
    "lookup": pb.LookupRequest(feature="user", ids=USER),
}
RESPONSES: dict[str, Any] = {
    "retrieve": pb.RetrieveResponse,
    "rank": pb.RankResponse,
    "recommend": pb.RecommendResponse,
    "embed": pb.EmbedResponse,
    "lookup": pb.LookupResponse,
}
TRANSPORTS = ("http", "grpc")
PROTOBUF = {"content-type": "application/x-protobuf"}
LIMITS = (
    "--max-concurrent-requests",
    "10000",
    "--max-queued-candidates",
    "10000000",
    "--request-timeout-s",
    "60",
)


@dataclass(frozen=True)
class Pace:
    """How much a service is loaded.

    Attributes:
      block_s: The length of each block of load.
      share: The load, as a share of the maximum throughput of the service.
      pause_s: The pause between two requests of each caller beside the load.
    """

    block_s: float = 2.0
    share: float = 0.7
    pause_s: float = 0.05


Soak = Callable[[int, int, Pace, Path], list[str]]


@dataclass
class Seen:
    """What callers received: of two different responses of one version to one request, one mixes
    two versions.
    """

    responses: dict[tuple[str, int], bytes] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, transport: str, call: str, body: bytes) -> None:
        """Compares a response with all others of its call and version."""
        message = RESPONSES[call].FromString(body)
        content = message.SerializeToString(deterministic=True)
        if self.responses.setdefault((call, message.model.version), content) != content:
            self.failures.append(
                f"{transport} {call}: responses of version {message.model.version} differ"
            )
        self.counts[f"{transport} {call}"] += 1


def repeat(
    service: Process,
    transport: str,
    call: str,
    pause_s: float,
    seen: Seen,
    done: threading.Event,
) -> None:
    """Sends one request again and again over one transport until `done` is set."""
    body = REQUESTS[call].SerializeToString()
    with (
        httpx.Client(
            base_url=f"http://127.0.0.1:{service.ports['http']}", timeout=WAIT_S
        ) as client,
        grpc.insecure_channel(f"127.0.0.1:{service.ports['grpc']}") as channel,
    ):
        method = channel.unary_unary(f"/{SERVICE}/{OPERATIONS[call].method}")
        while not done.wait(pause_s):
            try:
                if transport == "grpc":
                    content = method(body, timeout=WAIT_S)
                else:
                    response = client.post(
                        f"/v1/models/{MODEL}:{call}", content=body, headers=PROTOBUF
                    )
                    content = response.raise_for_status().content
            except (grpc.RpcError, httpx.HTTPError) as problem:
                seen.failures.append(f"{transport} {call}: {problem}")
            else:
                seen.add(transport, call, content)


@dataclass(frozen=True)
class State:
    """What must not grow, of all processes of a service.

    Memory is anonymous memory, with pages that the processes share counted once.
    """

    memory_bytes: int
    descriptors: int
    maps: int
    metrics: int

    @classmethod
    def of(cls, service: Process) -> State:
        """Measures a service, a second after its load."""
        time.sleep(1)
        parent = psutil.Process(service.process.pid)
        processes = [parent, *parent.children()]
        maps = "".join(Path(f"/proc/{process.pid}/maps").read_text() for process in processes)
        metrics = f"http://127.0.0.1:{service.ports['http']}/metrics"
        # What is looked at from time to time alone is served from the first time on.
        until(lambda: "rowcast_model_table_bytes{" in httpx.get(metrics, timeout=WAIT_S).text)
        return cls(
            sum(anonymous_bytes(process.pid) for process in processes),
            sum(process.num_fds() for process in processes),
            maps.count(f"/{MODEL}/"),
            httpx.get(metrics, timeout=WAIT_S).text.count("\n"),
        )


def anonymous_bytes(process: int) -> int:
    """Returns the anonymous memory of a process, of shared pages its part."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss_Anon:"))


def median_bytes(states: Sequence[State]) -> int:
    """Returns the memory of a few looks at it, bytes."""
    return int(np.median([state.memory_bytes for state in states]))


@contextmanager
def running(repeated: Sequence[Callable[[threading.Event], None]]) -> Iterator[None]:
    """Runs each in a thread of its own meanwhile; at the end sets the event that they take, and
    waits for them.
    """
    done = threading.Event()
    with ThreadPoolExecutor(len(repeated)) as threads:
        jobs = [threads.submit(action, done) for action in repeated]
        try:
            yield
        finally:
            done.set()
        for job in jobs:
            job.result()


def callers_of(service: Process, seen: Seen, pause_s: float) -> AbstractContextManager[None]:
    """Sends every request over both transports meanwhile."""
    return running(
        [
            partial(repeat, service, transport, call, pause_s, seen)
            for transport in TRANSPORTS
            for call in REQUESTS
        ]
    )


@contextmanager
def pressure_on(
    service: Process,
    publisher: Publisher,
    seen: Seen,
    pace: Pace,
    interval_s: float = INTERVAL_S,
) -> Iterator[Pressure]:
    """Puts a service that serves version 1 under load; responses to callers beside the load are
    compared.
    """
    body = REQUESTS["recommend"].SerializeToString()
    load = Load(
        Endpoint(service.ports["http"], f"/v1/models/{MODEL}:recommend", PROTOBUF["content-type"]),
        [body],
    )
    publisher.wait_current(1)
    with callers_of(service, seen, pace.pause_s), closing(load), closing(publisher):
        load.closed(8, 0.5)
        yield Pressure(
            load, service.process.pid, pace.block_s, interval_s, publisher.rehearse, pace.share
        )


def switch_under_load(
    service: Process, publisher: Publisher, versions: int, pace: Pace
) -> list[str]:
    """Publishes version after version under load; returns what is wrong."""
    seen = Seen()
    rounds = list[Round]()
    states = dict[int, State]()
    with pressure_on(service, publisher, seen, pace) as pressure:
        while publisher.version <= versions:
            rounds.append(
                pressure.round(
                    publisher.next, publisher.version, lambda: publisher.version <= versions
                )
            )
            if publisher.version >= min(SETTLED_AFTER, versions // 2) + len(states) * LOOK_EVERY:
                states[publisher.version] = State.of(service)
        states[publisher.version] = State.of(service)
    versions_seen = {version for _, version in seen.responses}
    sent_count, failed = sent_and_failed(rounds)
    rates = [measured.rate_per_s for measured in rounds]
    SHOW.print(
        f"{publisher.switches} switches to {versions} versions at {min(rates):.0f} to "
        f"{max(rates):.0f} calls a second: {sent_count} requests timed, {failed} failed; "
        f"{sum(seen.counts.values())} responses of {len(versions_seen)} versions compared"
    )
    for line in compared(rounds, "switches"):
        SHOW.print(line)
    memory = ", ".join(
        f"{state.memory_bytes / 1e6:.1f} at {version}" for version, state in states.items()
    )
    SHOW.print(f"MB of memory: {memory}")
    return wrong_of(seen, failed, [*states.values()])


def wrong_of(seen: Seen, failed: int, states: Sequence[State]) -> list[str]:
    """Returns what is wrong; `states`: of the service once it has settled, in order."""
    settled = states[0]
    after = states[-1]
    growth = median_bytes(states[-LOOKS:]) / median_bytes(states[:LOOKS]) - 1
    SHOW.print(f"{settled} -> {after}: memory {growth:+.1%}")
    wrong = seen.failures[:5]
    if failed:
        wrong.append(f"{failed} requests failed")
    if growth > GROWTH_MAX:
        wrong.append("memory grows with every version")
    if after.descriptors > settled.descriptors + 8 or after.maps > settled.maps + 4:
        wrong.append("files of versions that were retired are still open")
    if after.metrics > settled.metrics + 8:
        wrong.append("metrics grow with every version")
    return wrong


def kept_towers() -> Path:
    """Returns the directory of the compiled towers, which later soaks use too."""
    directory = Path("build/soak/towers").resolve()
    directory.mkdir(parents=True, exist_ok=True)
    return compiled_towers(directory)


def originals_of(towers: Path, directory: Path) -> list[Path]:
    """Writes versions whose responses differ."""
    return [
        write_small_bundle(directory, towers, MODEL, version).directory
        for version in range(1, DISTINCT + 1)
    ]


@contextmanager
def service_of(
    towers: Path, *options: str, workers: int = 1, kept_versions: int = 2
) -> Iterator[tuple[Process, Publisher]]:
    """Runs a service with version 1, and a publisher of others, of which `kept_versions` stay in
    the root.
    """
    Path("build/soak").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir="build/soak") as scratch:
        root = Path(scratch).resolve() / "bundles"
        originals = originals_of(towers, Path(scratch).resolve() / "originals")
        shutil.copytree(originals[0], root / MODEL / "1", copy_function=os.link)
        service = Process(root, "--workers", str(workers), *LIMITS, *options)
        try:
            service.event("listening")
            with cores.loading():
                yield service, Publisher(service, workers, root, originals, kept_versions)
        finally:
            service.kill()


def run(versions: int, workers: int, pace: Pace, towers: Path) -> list[str]:
    """Runs a service and switches its versions; returns what is wrong."""
    with service_of(towers, workers=workers) as (service, publisher):
        return switch_under_load(service, publisher, versions, pace) + (
            [] if service.stop(signal.SIGTERM) == 0 else ["the service did not drain"]
        )


def command(name: str, description: str | None, number: tuple[str, int, str], soak: Soak) -> None:
    """Reads the arguments of a soak, runs it and exits.

    Args:
      name: The name of the soak.
      description: What it does.
      number: Option, default and help of what determines how long it takes.
      soak: Function of that number, the number of the service's processes, the load, and towers;
        returns what is wrong.
    """
    flag, default, meaning = number
    arguments = argparse.ArgumentParser(description=description)
    arguments.add_argument(flag, dest="number", type=int, default=default, help=meaning)
    arguments.add_argument("--workers", type=int, default=1, help="processes of the service")
    arguments.add_argument(
        "--block-s", type=float, default=Pace.block_s, help="seconds of each block of load"
    )
    options = arguments.parse_args()
    SHOW.print(cores.serve_on_few())
    wrong = soak(options.number, options.workers, Pace(options.block_s), kept_towers())
    for problem in wrong:
        SHOW.print("WRONG:", problem)
    SHOW.print(f"{name}:", "failed" if wrong else "passed")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    command(
        "switches", __doc__, ("--versions", 144, "versions published under load: 200 switches"), run
    )
