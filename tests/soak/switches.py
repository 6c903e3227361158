"""`python -m tests.soak.switches`: versions that come, go back and forth under 70 % of the load that a service bears.

Callers see no failed request, no answer mixed of two versions, and latencies that are told beside those of blocks
without a switch, which alternate with them and in which the same is written beside the root, where no service looks:
what publishing costs the machine is no cost of a switch. The service's memory stays what it was. Of four cores or more
the service has two, and what asks, compares and publishes has others. Nothing is refused for lack of room: a machine
that is busy with other things shows in the latencies alone.
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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import psutil
from google.protobuf.message import Message
from numpy.typing import NDArray
from rich.console import Console

from bundle.manifest import dump, parse
from service.rpc.servicer import SERVICE
from service.wire.operations import OPERATIONS
from service.wire.stubs import embedding_service_pb2 as pb
from tests.bench import cores
from tests.bench.load import Answers, Door, Load
from tests.service.process import PATIENCE_S, Process
from tests.service.small_bundle import compiled_towers, write_small_bundle

MODEL = "movies"
SHARE = 0.7
"""Of what the service answers at most."""
BOTH_WAYS_EVERY = 5
"""After so many versions, one is gone back from and to."""
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
    def of(cls, service: Process, client: httpx.Client) -> State:
        """Measures a service, a moment after its load."""
        time.sleep(1)
        parent = psutil.Process(service.process.pid)
        processes = [parent, *parent.children()]
        maps = "".join(Path(f"/proc/{each.pid}/maps").read_text() for each in processes)
        client.get("/metrics")  # itself counted from now on
        return cls(
            sum(anonymous_bytes(each.pid) for each in processes),
            sum(each.num_fds() for each in processes),
            maps.count(f"/{MODEL}/"),
            client.get("/metrics").text.count("\n"),
        )


def anonymous_bytes(process: int) -> int:
    """Returns the memory of a process that no file stands behind; of what it shares, its part."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss_Anon:"))


def in_the_middle(states: Sequence[State]) -> int:
    """Returns the memory of a few looks at it, bytes."""
    return int(np.median([each.memory_bytes for each in states]))


class Publisher:
    """Has a service serve version after version, and go back to the one before now and then."""

    def __init__(self, service: Process, workers: int, root: Path, originals: list[Path]) -> None:
        """Begins behind version 1, which is served by so many processes."""
        self._service, self._workers, self._root, self._originals = service, workers, root, originals
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{service.ports['admin']}", timeout=PATIENCE_S)
        self.version, self.switches = 1, 0

    def next(self) -> None:
        """Publishes a version by one rename, waits until every process answers with it, and takes the oldest away."""
        self.version += 1
        self._write(self._root / MODEL, self.version)
        self._await_load()
        self.switches += 1
        if self.version % BOTH_WAYS_EVERY == 0:
            self._order("rollback", self.version - 1)
            self._order("unpin", self.version)
        gone = self._root / MODEL / str(self.version - 2)
        if gone.is_dir():
            shutil.rmtree(gone)

    def rehearse(self) -> None:
        """Does what `next` does, but where no service looks."""
        beside = self._root.parent / "rehearsed"
        self._write(beside, self.version + 1)
        shutil.rmtree(beside)

    def _write(self, model: Path, version: int) -> None:
        aside = model / f".{version}"
        shutil.copytree(self._originals[version % len(self._originals)], aside, copy_function=os.link)
        manifest = aside / "manifest.json"
        page = replace_version(manifest.read_bytes(), version)
        manifest.unlink()
        manifest.write_bytes(page)
        aside.rename(model / str(version))

    def _await_load(self) -> None:
        """Waits for the log to tell of the version: to ask for it every moment would cost the service more than it."""
        left = self._workers
        while left:
            left -= self._service.event("version_available")["version"] == self.version

    def _order(self, what: str, version: int) -> None:
        self._client.post(f"/v1/models/{MODEL}/{what}", json={}).raise_for_status()
        self.until(version)
        self.switches += 1

    def until(self, version: int) -> None:
        """Waits until every process answers with a version."""
        end = time.monotonic() + PATIENCE_S
        while self._client.get("/v1/status").json()["models"][0]["current"] != version:
            if time.monotonic() > end:
                raise TimeoutError(f"version {version} never answered in every process")
            time.sleep(0.02)

    def close(self) -> None:
        self._client.close()


def replace_version(page: bytes, version: int) -> bytes:
    """Returns a manifest's page of another version."""
    return dump(parse(page).model_copy(update={"version": version}))


@dataclass
class Blocks:
    """Load with and without switches, in turns."""

    steady_s: list[NDArray[np.float64]] = field(default_factory=list)
    switching_s: list[NDArray[np.float64]] = field(default_factory=list)
    failed: int = 0
    asked: int = 0

    def add(self, answers: Answers, switching: bool) -> None:
        (self.switching_s if switching else self.steady_s).append(answers.latency_s[answers.status == 200])
        self.failed += answers.failed
        self.asked += len(answers.status)

    def ratio(self, percent: float) -> tuple[float, float, float]:
        """Returns a percentile without and with switches, ms, and the second by the first."""
        steady, switching = (
            float(np.percentile(np.concatenate(each), percent)) * 1e3 for each in (self.steady_s, self.switching_s)
        )
        return steady, switching, switching / steady

    def ratio_of_blocks(self, percent: float) -> tuple[float, float, float]:
        """Returns the same of the median block, which a moment without a core does not move."""
        steady, switching = (
            float(np.median([np.percentile(block, percent) for block in each])) * 1e3
            for each in (self.steady_s, self.switching_s)
        )
        return steady, switching, switching / steady


def switch_under_load(
    service: Process,
    workers: int,
    root: Path,
    originals: list[Path],
    versions: int,
    block_s: float,
    client: httpx.Client,
) -> list[str]:
    """Publishes version after version under load; returns what is wrong."""
    body = REQUESTS["recommend"].SerializeToString()
    load = Load(Door(service.ports["http"], f"/v1/models/{MODEL}:recommend", PROTOBUF["content-type"]), [body])
    publisher, seen, done, blocks = Publisher(service, workers, root, originals), Seen(), threading.Event(), Blocks()
    states, rates = dict[int, State](), list[float]()
    publisher.until(1)
    with ThreadPoolExecutor(len(REQUESTS) * 2 + 1) as callers:
        jobs = [
            callers.submit(ask_on, service, door, call, seen, done) for door in ("http", "grpc") for call in REQUESTS
        ]
        try:
            load.closed(8, 0.5)
            while publisher.version <= versions:
                rates.append(SHARE * load.closed(8, block_s / 2).requests_per_s)  # anew: others use the machine too
                for switching, publish in ((False, publisher.rehearse), (True, publisher.next)):
                    loaded = callers.submit(load.open, rates[-1], block_s, publisher.version)
                    while not loaded.done() and publisher.version <= versions:
                        due = time.monotonic() + min(EVERY_S, block_s / 2)
                        publish()
                        time.sleep(max(0, due - time.monotonic()))
                    blocks.add(loaded.result(), switching)
                if publisher.version >= min(SETTLED_AFTER, versions // 2) + len(states) * LOOK_EVERY:
                    states[publisher.version] = State.of(service, client)
            states[publisher.version] = State.of(service, client)
        finally:
            done.set()
            publisher.close()
            load.close()
        for job in jobs:
            job.result()
    answered = {version for _, version in seen.answers}
    SHOW.print(
        f"{publisher.switches} switches to {versions} versions at {min(rates):.0f} to {max(rates):.0f} calls a second: "
        f"{blocks.asked} answers timed, {blocks.failed} failed; {sum(seen.counts.values())} answers of {len(answered)} "
        "versions compared"
    )
    for percent in (50, 99, 99.9):
        steady, switches, ratio = blocks.ratio(percent)
        SHOW.print(f"p{percent:g}: {steady:.2f} ms without switches, {switches:.2f} ms with: x {ratio:.2f}")
    steady, switches, ratio = blocks.ratio_of_blocks(99)
    SHOW.print(f"p99 of the median block: {steady:.2f} ms without switches, {switches:.2f} ms with: x {ratio:.2f}")
    memory = ", ".join(f"{each.memory_bytes / 1e6:.1f} at {version}" for version, each in states.items())
    SHOW.print(f"MB of memory: {memory}")
    return wrong_of(seen, blocks, [*states.values()])


def wrong_of(seen: Seen, blocks: Blocks, states: Sequence[State]) -> list[str]:
    """Judges what was seen; states: of the service once it is settled, in their order."""
    settled, after = states[0], states[-1]
    growth = in_the_middle(states[-LOOKS:]) / in_the_middle(states[:LOOKS]) - 1
    SHOW.print(f"{settled} -> {after}: memory {growth:+.1%}")
    wrong = seen.failures[:5]
    if blocks.failed:
        wrong.append(f"{blocks.failed} calls failed")
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


def run(versions: int, workers: int, block_s: float, towers: Path) -> list[str]:
    """Runs a service of such towers and switches its versions; returns what is wrong."""
    Path("build/soak").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir="build/soak") as scratch:
        root = Path(scratch).resolve() / "bundles"
        originals = originals_of(towers, Path(scratch).resolve() / "originals")
        shutil.copytree(originals[0], root / MODEL / "1", copy_function=os.link)
        limits = ("--in-flight-max", "10000", "--in-flight-candidates-max", "10000000", "--in-line-max", "10000")
        roomy = (*limits, "--timeout-s", "60")
        service = Process(root, "--workers", str(workers), *roomy)
        try:
            with service.client() as client, cores.loading():
                return switch_under_load(service, workers, root, originals, versions, block_s, client) + (
                    [] if service.stop(signal.SIGTERM) == 0 else ["the service did not drain"]
                )
        finally:
            service.kill()


def main() -> None:
    """Reads the arguments and runs."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--versions", type=int, default=144, help="versions published under load: 200 switches")
    arguments.add_argument("--workers", type=int, default=1, help="processes of the service")
    arguments.add_argument("--block-s", type=float, default=2, help="seconds of each block of load")
    options = arguments.parse_args()
    SHOW.print(cores.serve_on_few())
    towers = Path("build/soak/towers").resolve()
    towers.mkdir(parents=True, exist_ok=True)
    wrong = run(options.versions, options.workers, options.block_s, compiled_towers(towers))
    for problem in wrong:
        SHOW.print("WRONG:", problem)
    SHOW.print("switches:", "failed" if wrong else "passed")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
