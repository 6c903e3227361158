"""`make soak`: a service under load while its versions change, callers hang up and too many come; ends by itself.

What a short test cannot see: memory, descriptors, maps and metrics that grow with every version or every lost caller.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx
import psutil
from google.protobuf.message import Message
from rich.console import Console

from service.rpc.servicer import SERVICE
from service.wire.operations import OPERATIONS
from service.wire.stubs import embedding_service_pb2 as pb
from tests.service.process import PATIENCE_S, Process
from tests.service.small_bundle import compiled_towers, write_small_bundle

ALL_S_MAX = 600
SETTLED_AFTER = 20
"""Versions after which memory has to stay where it is."""
GROWTH_MIB_MAX = 24
MODEL = "movies"
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
        while not done.is_set():
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
    """What must not grow."""

    rss_mib: int
    descriptors: int
    maps: int
    metrics: int

    @classmethod
    def of(cls, service: Process, client: httpx.Client) -> State:
        """Measures a service."""
        running = psutil.Process(service.process.pid)
        maps = Path(f"/proc/{service.process.pid}/maps").read_text()
        client.get("/metrics")  # itself counted from now on
        lines = client.get("/metrics").text.count("\n")
        return cls(running.memory_info().rss >> 20, running.num_fds(), maps.count(f"/{MODEL}/"), lines)


def swap(service: Process, root: Path, towers: Path, versions: int, client: httpx.Client) -> list[str]:
    """Publishes version after version under load; returns what is wrong."""
    seen, done, settled = Seen(), threading.Event(), None
    with ThreadPoolExecutor(len(REQUESTS) * 2) as callers:
        jobs = [
            callers.submit(ask_on, service, door, call, seen, done) for door in ("http", "grpc") for call in REQUESTS
        ]
        try:
            for version in range(2, versions + 2):
                write_small_bundle(root, towers, MODEL, version)
                service.event("version_retired")
                shutil.rmtree(root / MODEL / str(version - 1))
                if version == SETTLED_AFTER:
                    settled = State.of(service, client)
            after = State.of(service, client)
        finally:
            done.set()
        for job in jobs:
            job.result()
    answered = {version for _, version in seen.answers}
    SHOW.print(
        f"{versions} versions, {sum(seen.counts.values())} answers of {len(answered)} of them: {settled} -> {after}"
    )
    wrong = seen.failures[:5]
    if settled is not None:
        if after.rss_mib > settled.rss_mib + GROWTH_MIB_MAX:
            wrong.append("memory grows with every version")
        if after.descriptors > settled.descriptors + 4 or after.maps > settled.maps + 2:
            wrong.append("files of versions that were retired are still open")
        if after.metrics > settled.metrics + 4:
            wrong.append("metrics grow with every version")
    return wrong


def hang_up(service: Process, callers: int, client: httpx.Client) -> list[str]:
    """Callers that leave: over HTTP with a reset, over gRPC by a deadline and by cancelling."""
    body = REQUESTS["recommend"].SerializeToString()
    head = f"POST /v1/models/{MODEL}:recommend HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-protobuf\r\n"
    request = head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body
    for number in range(callers):
        with socket.create_connection(("127.0.0.1", service.ports["http"])) as line:
            line.sendall(request if number % 2 else request[:-1])
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # reset instead of an end
    with grpc.insecure_channel(f"127.0.0.1:{service.ports['grpc']}") as channel:
        method = channel.unary_unary(f"/{SERVICE}/Recommend")
        calls = [method.future(body, timeout=0.001 if number % 2 else 10) for number in range(callers)]
        for call in calls[::2]:
            call.cancel()
        for call in calls[1::2]:
            call.exception()
    end = time.monotonic() + PATIENCE_S
    while (left := in_flight(client)) and time.monotonic() < end:
        time.sleep(0.05)
    SHOW.print(f"{2 * callers} callers hung up: {left:g} calls in flight")
    return ["callers that hung up keep their permits"] if left else []


def in_flight(client: httpx.Client) -> float:
    """Calls that the service says are in flight."""
    lines = client.get("/metrics").text.splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("rowcast_in_flight ")))


def overload(service: Process, client: httpx.Client, seconds: float) -> list[str]:
    """Five times as many callers as are admitted: some are answered, the others refused, nothing else."""
    codes: Counter[int] = Counter()
    end = time.monotonic() + seconds
    body = REQUESTS["recommend"].SerializeToString()

    def ask(_: int) -> None:
        with httpx.Client(base_url=client.base_url, timeout=PATIENCE_S) as caller:
            while time.monotonic() < end:
                answer = caller.post(f"/v1/models/{MODEL}:recommend", content=body, headers=PROTOBUF)
                codes[answer.status_code] += 1
                if answer.status_code == 429 and "retry-after" not in answer.headers:
                    codes[0] += 1

    with ThreadPoolExecutor(20) as callers:
        list(callers.map(ask, range(20)))
    began = time.monotonic()
    after = client.post(f"/v1/models/{MODEL}:recommend", content=body, headers=PROTOBUF).status_code
    SHOW.print(f"overload for {seconds:g} s: {dict(codes)}, then {after} in {time.monotonic() - began:.3f} s")
    fine = set(codes) <= {200, 429} and codes[200] and after == 200
    return [] if fine else ["an overload is not refused as it should be, or does not pass"]


def soak(versions: int, callers: int, seconds: float) -> int:
    """Runs all of it; returns the exit code."""
    towers = Path("build/soak/towers")
    towers.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "bundles"
        root.mkdir()
        write_small_bundle(root, compiled_towers(towers.resolve()), MODEL, 1)
        service = Process(root, "--in-flight-max", "16")
        try:
            with service.client() as client:
                service.event("version_available")
                wrong = swap(service, root, towers, versions, client)
                wrong += hang_up(service, callers, client)
            if service.stop(signal.SIGTERM) != 0:
                wrong.append("the service did not drain")
            service = Process(root, "--in-flight-max", "4")
            with service.client() as client:
                service.event("version_available")
                wrong += overload(service, client, seconds)
        finally:
            service.kill()
    for problem in wrong:
        SHOW.print("WRONG:", problem)
    SHOW.print("soak:", "failed" if wrong else "passed")
    return 1 if wrong else 0


def main() -> None:
    """Reads the arguments and runs."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--versions", type=int, default=100, help="versions published under load")
    arguments.add_argument("--callers", type=int, default=2000, help="callers that hang up, at each door")
    arguments.add_argument("--overload-s", type=float, default=10, help="seconds of overload")
    options = arguments.parse_args()
    signal.alarm(ALL_S_MAX)  # whatever hangs ends here
    raise SystemExit(soak(options.versions, options.callers, options.overload_s))


if __name__ == "__main__":
    main()
