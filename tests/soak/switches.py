"""`python -m tests.soak.switches`: versions that come, go back and forth under 70 % of the load that a service bears.

Callers see no failed request, no answer mixed of two versions, and latencies that are told beside those of blocks
without a switch, which lie around them and in which the same is written beside the root, where no service looks: what
publishing costs the machine is no cost of a switch. What blocks without a switch differ by is told, too. The service's
memory stays what it was. Of four cores or more the service has two, and what asks, compares and publishes has others.
Nothing is refused for lack of room: a machine that is busy with other things shows in the latencies alone.
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
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import psutil
from google.protobuf.message import Message
from rich.console import Console

from service.rpc.servicer import SERVICE
from service.wire.operations import OPERATIONS
from service.wire.stubs import embedding_service_pb2 as pb
from tests.bench import cores
from tests.bench.load import Door, Load
from tests.service.process import PATIENCE_S, Process
from tests.service.small_bundle import compiled_towers, write_small_bundle
from tests.soak.blocks import Pressure, Round, asked_and_failed, compared
from tests.soak.publishing import MODEL, Publisher

SETTLED_AFTER, LOOK_EVERY = 20, 8
"""Versions after which memory has to stay where it is, and between two looks at it."""
LOOKS = 3
"""Of which the middle one counts, first and last: the interpreter takes and gives back 1 MiB at a time."""
GROWTH_MAX = 0.02
DISTINCT = 8
"""Versions that answer differently; those that come later are one of them under another number."""
EVERY_S = 0.5
"""From one switch to the next, at least: some 4 % of a core go into switches of versions this small."""
PAUSE_S = 0.05
SHOW = Console(highlight=False, soft_wrap=True)
USER = pb.Column(int64s=(5).to_bytes(8, "little"))
MOVIES = pb.Ids(int64s=b"".join((1000 + 7 * i).to_bytes(8, "little") for i in range(8)))
REQUESTS: dict[str, Message] = {
    "retrieve": pb.RetrieveRequest(k=5, features={"user": USER}, attributes=["title"]),
    "rank": pb.RankRequest(context={"user": USER}, candidate_ids=MOVIES),
    "recommend": pb.RecommendRequest(k=3, features={"user": USER}, attributes=["title"]),
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
PROTOBUF = {"content-type": "application/x-protobuf"}
Soak = Callable[[int, int, float, Path], list[str]]


@dataclass
class Seen:
    """What callers got: whatever differs between two answers of one call by one version was mixed of two versions."""

    answers: dict[tuple[str, int], bytes] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, door: str, call: str, body: bytes) -> None:
        """Compares an answer with all others of its call and version."""
        message = RESPONSES[call].FromString(body)
        told = message.SerializeToString(deterministic=True)
        if self.answers.setdefault((call, message.model.version), told) != told:
            self.failures.append(f"{door} {call}: version {message.model.version} answered differently")
        self.counts[f"{door} {call}"] += 1


def ask_on(service: Process, door: str, call: str, seen: Seen, done: threading.Event) -> None:
    """Asks one call over one door until told to end."""
    body = REQUESTS[call].SerializeToString()
    with (
        httpx.Client(base_url=f"http://127.0.0.1:{service.ports['http']}", timeout=PATIENCE_S) as client,
        grpc.insecure_channel(f"127.0.0.1:{service.ports['grpc']}") as channel,
    ):
        method = channel.unary_unary(f"/{SERVICE}/{OPERATIONS[call].method}")
        while not done.wait(PAUSE_S):
            try:
                if door == "grpc":
                    answer = method(body, timeout=PATIENCE_S)
                else:
                    asked = client.post(f"/v1/models/{MODEL}:{call}", content=body, headers=PROTOBUF)
                    answer = asked.raise_for_status().content
            except (grpc.RpcError, httpx.HTTPError) as problem:
                seen.failures.append(f"{door} {call}: {problem}")
            else:
                seen.add(door, call, answer)


@dataclass(frozen=True)
class State:
    """What must not grow, of all processes of a service.

    Memory is what no file stands behind, pages that they share counted once. Private memory tells of other programs:
    pages of libraries, 7 MB of 73, become and cease to be private as those who load them too come and go.
    """

    memory_bytes: int
    descriptors: int
    maps: int
    metrics: int

    @classmethod
    def of(cls, service: Process) -> State:
        """Measures a service, a moment after its load."""
        time.sleep(1)
        parent = psutil.Process(service.process.pid)
        processes = [parent, *parent.children()]
        maps = "".join(Path(f"/proc/{each.pid}/maps").read_text() for each in processes)
        metrics = f"http://127.0.0.1:{service.ports['http']}/metrics"
        httpx.get(metrics, timeout=PATIENCE_S)  # itself counted from now on
        return cls(
            sum(anonymous_bytes(each.pid) for each in processes),
            sum(each.num_fds() for each in processes),
            maps.count(f"/{MODEL}/"),
            httpx.get(metrics, timeout=PATIENCE_S).text.count("\n"),
        )


def anonymous_bytes(process: int) -> int:
    """Returns the memory of a process that no file stands behind; of what it shares, its part."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss_Anon:"))


def in_the_middle(states: Sequence[State]) -> int:
    """Returns the memory of a few looks at it, bytes."""
    return int(np.median([each.memory_bytes for each in states]))


@contextmanager
def callers_of(service: Process, seen: Seen) -> Iterator[None]:
    """Asks every call over both doors meanwhile."""
    done = threading.Event()
    with ThreadPoolExecutor(len(REQUESTS) * 2) as callers:
        jobs = [
            callers.submit(ask_on, service, door, call, seen, done) for door in ("http", "grpc") for call in REQUESTS
        ]
        try:
            yield
        finally:
            done.set()
        for job in jobs:
            job.result()


@contextmanager
def pressure_on(
    service: Process, publisher: Publisher, seen: Seen, block_s: float, every_s: float = EVERY_S
) -> Iterator[Pressure]:
    """Has a service that serves version 1 under load; of what it answers callers beside the load, all is compared."""
    body = REQUESTS["recommend"].SerializeToString()
    load = Load(Door(service.ports["http"], f"/v1/models/{MODEL}:recommend", PROTOBUF["content-type"]), [body])
    publisher.begin()
    with callers_of(service, seen), closing(load), closing(publisher):
        load.closed(8, 0.5)
        yield Pressure(load, service.process.pid, block_s, every_s, publisher.rehearse)


def switch_under_load(service: Process, publisher: Publisher, versions: int, block_s: float) -> list[str]:
    """Publishes version after version under load; returns what is wrong."""
    seen, rounds, states = Seen(), list[Round](), dict[int, State]()
    with pressure_on(service, publisher, seen, block_s) as pressure:
        while publisher.version <= versions:
            rounds.append(pressure.round(publisher.next, publisher.version, lambda: publisher.version <= versions))
            if publisher.version >= min(SETTLED_AFTER, versions // 2) + len(states) * LOOK_EVERY:
                states[publisher.version] = State.of(service)
        states[publisher.version] = State.of(service)
    answered = {version for _, version in seen.answers}
    asked, failed = asked_and_failed(rounds)
    rates = [each.rate_per_s for each in rounds]
    SHOW.print(
        f"{publisher.switches} switches to {versions} versions at {min(rates):.0f} to {max(rates):.0f} calls a second: "
        f"{asked} answers timed, {failed} failed; {sum(seen.counts.values())} answers of {len(answered)} "
        "versions compared"
    )
    for line in compared(rounds, "switches"):
        SHOW.print(line)
    memory = ", ".join(f"{each.memory_bytes / 1e6:.1f} at {version}" for version, each in states.items())
    SHOW.print(f"MB of memory: {memory}")
    return wrong_of(seen, failed, [*states.values()])


def wrong_of(seen: Seen, failed: int, states: Sequence[State]) -> list[str]:
    """Judges what was seen; states: of the service once it is settled, in their order."""
    settled, after = states[0], states[-1]
    growth = in_the_middle(states[-LOOKS:]) / in_the_middle(states[:LOOKS]) - 1
    SHOW.print(f"{settled} -> {after}: memory {growth:+.1%}")
    wrong = seen.failures[:5]
    if failed:
        wrong.append(f"{failed} calls failed")
    if growth > GROWTH_MAX:
        wrong.append("memory grows with every version")
    if after.descriptors > settled.descriptors + 8 or after.maps > settled.maps + 4:
        wrong.append("files of versions that were retired are still open")
    if after.metrics > settled.metrics + 8:
        wrong.append("metrics grow with every version")
    return wrong


def originals_of(towers: Path, place: Path) -> list[Path]:
    """Writes versions that answer differently."""
    return [write_small_bundle(place, towers, MODEL, version).directory for version in range(1, DISTINCT + 1)]


@contextmanager
def service_of(towers: Path, *options: str, workers: int = 1, kept: int = 2) -> Iterator[tuple[Process, Publisher]]:
    """Runs a service of one version with such towers, and what publishes others; kept: so many stay in its root."""
    Path("build/soak").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir="build/soak") as scratch:
        root = Path(scratch).resolve() / "bundles"
        originals = originals_of(towers, Path(scratch).resolve() / "originals")
        shutil.copytree(originals[0], root / MODEL / "1", copy_function=os.link)
        limits = ("--in-flight-max", "10000", "--in-flight-candidates-max", "10000000", "--in-line-max", "10000")
        service = Process(root, "--workers", str(workers), *limits, "--timeout-s", "60", *options)
        try:
            service.event("listening")
            with cores.loading():
                yield service, Publisher(service, workers, root, originals, kept)
        finally:
            service.kill()


def run(versions: int, workers: int, block_s: float, towers: Path) -> list[str]:
    """Runs a service of such towers and switches its versions; returns what is wrong."""
    with service_of(towers, workers=workers) as (service, publisher):
        return switch_under_load(service, publisher, versions, block_s) + (
            [] if service.stop(signal.SIGTERM) == 0 else ["the service did not drain"]
        )


def command(name: str, told: str | None, number: tuple[str, int, str], soak: Soak) -> None:
    """Reads the arguments of a soak, runs it and exits.

    Args:
      name: of the soak.
      told: what it does.
      number: option, default and meaning of what says how long it takes.
      soak: given that number, the service's processes, seconds of a block, and towers; returns what is wrong.
    """
    flag, default, meaning = number
    arguments = argparse.ArgumentParser(description=told)
    arguments.add_argument(flag, dest="number", type=int, default=default, help=meaning)
    arguments.add_argument("--workers", type=int, default=1, help="processes of the service")
    arguments.add_argument("--block-s", type=float, default=2, help="seconds of each block of load")
    options = arguments.parse_args()
    SHOW.print(cores.serve_on_few())
    towers = Path("build/soak/towers").resolve()
    towers.mkdir(parents=True, exist_ok=True)
    wrong = soak(options.number, options.workers, options.block_s, compiled_towers(towers))
    for problem in wrong:
        SHOW.print("WRONG:", problem)
    SHOW.print(f"{name}:", "failed" if wrong else "passed")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    command("switches", __doc__, ("--versions", 144, "versions published under load: 200 switches"), run)
