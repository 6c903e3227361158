"""`make soak-scale`: two fronts and two replicas of each of two shards under load, disturbed at random moments.

Processes are killed, stopped, slowed, or serve an older version for a while: one alone, one of each shard, or both
replicas of a shard. Exit code 1: an answer differs from that of one process which has everything, or a request failed
although its front was there, and a replica of each shard. Not here: full disks, as fronts and shards write none.
"""

from __future__ import annotations

import argparse
import random
import signal
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import httpx
import numpy as np
from rich.console import Console

from service.codec.operations import OPERATIONS
from service.grpc_api.servicer import SERVICE
from tests.e2e.process import WAIT_S, Process, until
from tests.e2e.services import is_ready
from tests.service.small_bundle import write_small_bundle
from tests.soak.proxies import free_port
from tests.soak.publishing import MODEL
from tests.soak.switches import PROTOBUF, REQUESTS, RESPONSES, kept_towers

OLDER, VERSION = 1, 2
ALL = ("--shard-least-bytes", "1")
HOLD_S = (0.1, 1.5)
"""How long a disturbance lasts, at least and at most."""
SLOW_S = (0.05, 0.02)
"""A slow process stands still and goes on in turns."""
SHOW = Console(highlight=False, soft_wrap=True)


class Member:
    """A front or a shard, which is started again on the same ports."""

    def __init__(self, name: str, root: Path, older: Path, *options: str) -> None:
        self.name, self._root, self._older, self._options = name, root, older, options
        self.http, self.grpc, self.admin = free_port(), free_port(), free_port()
        self.process = self._start(root)

    def _start(self, root: Path) -> Process:
        ports = ("--http-port", str(self.http), "--grpc-port", str(self.grpc), "--admin-port", str(self.admin))
        return Process(root, *ports, *self._options)

    def _restart(self, root: Path, after_s: float = 0) -> None:
        self.process.kill()
        time.sleep(after_s)
        self.process = self._start(root)
        self.process.event("version_available")

    def is_killed(self, hold_s: float) -> None:
        """Ends it, and starts it again."""
        self._restart(self._root, hold_s)

    def is_stopped(self, hold_s: float) -> None:
        """Has it stand still."""
        self.process.process.send_signal(signal.SIGSTOP)
        time.sleep(hold_s)
        self.process.process.send_signal(signal.SIGCONT)

    def is_slow(self, hold_s: float) -> None:
        """Has it stand still most of the time."""
        end = time.monotonic() + hold_s
        while time.monotonic() < end:
            self.is_stopped(SLOW_S[0])
            time.sleep(SLOW_S[1])

    def is_older(self, hold_s: float) -> None:
        """Has it serve an older version of the model."""
        self._restart(self._older)
        time.sleep(hold_s)
        self._restart(self._root)


ACTIONS = (Member.is_killed, Member.is_stopped, Member.is_slow, Member.is_older)  # fronts: the first three


@dataclass
class Seen:
    """What callers received, and when it may have failed: as (first, last) instants."""

    answers: dict[str, bytes]
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[str, float, float, str]] = field(default_factory=list)
    allowed: list[tuple[str, float, float]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def add(self, call: str, where: str, body: bytes) -> None:
        """Compares an answer with that of one process."""
        self.counts["answers"] += 1
        if deterministic(call, body) != self.answers[call]:
            self.wrong.append(f"{where} {call}: another answer than that of one process")

    def problems(self) -> list[str]:
        """Returns what is wrong, each once."""
        found = [*self.wrong]
        for front, begun, ended, problem in self.failures:
            excused = any(
                each in ("", front) and begun <= last and ended >= first for each, first, last in self.allowed
            )
            self.counts["excused failures"] += excused
            found += [] if excused else [problem]
        return [f"{each}, {count} times" for each, count in Counter(found).most_common(10)]


def deterministic(call: str, body: bytes) -> bytes:
    """Returns an answer as bytes that can be compared."""
    return bytes(RESPONSES[call].FromString(body).SerializeToString(deterministic=True))


def post(port: int, call: str) -> bytes:
    """Sends a request over HTTP."""
    url, body = f"http://127.0.0.1:{port}/v1/models/{MODEL}:{call}", REQUESTS[call].SerializeToString()
    answer = httpx.post(url, content=body, headers=PROTOBUF, timeout=WAIT_S)
    return answer.raise_for_status().content


def described(problem: grpc.RpcError | httpx.HTTPError) -> str:
    """Returns what went wrong, on one line."""
    return f"{problem.code().name}: {problem.details()}" if isinstance(problem, grpc.Call) else str(problem)


def repeat(front: Member, transport: str, seen: Seen, done: threading.Event) -> None:
    """Sends all requests to a front again and again."""
    with grpc.insecure_channel(f"127.0.0.1:{front.grpc}", [("grpc.max_reconnect_backoff_ms", 200)]) as channel:
        while not done.is_set():
            for call, request in REQUESTS.items():
                begun = time.monotonic()
                try:
                    if transport == "http":
                        body = post(front.http, call)
                    else:
                        method = channel.unary_unary(f"/{SERVICE}/{OPERATIONS[call].method}")
                        body = method(request.SerializeToString(), timeout=WAIT_S)
                except (grpc.RpcError, httpx.HTTPError) as problem:
                    seen.failures.append((front.name, begun, time.monotonic(), described(problem)))
                    time.sleep(0.05)
                else:
                    seen.add(call, f"{front.name} {transport}", body)


def recovered(fronts: Sequence[Member], shards: Sequence[Member]) -> bool:
    """Returns whether every front is ready and reaches all that every shard holds."""
    with suppress(httpx.HTTPError):
        for front in fronts:
            with httpx.Client(base_url=f"http://127.0.0.1:{front.http}", timeout=WAIT_S) as client:
                if not is_ready(client):
                    return False
            (process,) = httpx.get(f"http://127.0.0.1:{front.admin}/v1/topology", timeout=WAIT_S).json()["processes"]
            whole = [
                each for each in process["shards"] if f"{MODEL}/{VERSION}" in each["holds"] and not each["problem"]
            ]
            if len(whole) != len(shards):
                return False
        return True
    return False


@contextmanager
def cluster(root: Path, older: Path) -> Iterator[tuple[list[Member], list[Member]]]:
    """Runs two fronts, and two replicas of each of two shards."""
    shards = [Member(f"shard {n} {r}", root, older, "--shard", f"{n}/2", *ALL) for n in (1, 2) for r in "ab"]
    addresses = [text for each in shards for text in ("--shard-addresses", f"127.0.0.1:{each.grpc}")]
    fronts = [Member(f"front {r}", root, older, *addresses, *ALL, "--request-timeout-s", "5") for r in "ab"]
    try:
        until(lambda: recovered(fronts, shards))
        yield fronts, shards
    finally:
        for each in (*fronts, *shards):
            each.process.kill()


def disturb(fronts: list[Member], shards: list[Member], seen: Seen, seed: int) -> tuple[str, float]:
    """Does something to some processes; returns what, and how long recovery took once it was over."""
    chosen = random.Random(seed)
    one, several = [chosen.choice([*fronts, *shards])], [chosen.choice(shards[:2]), chosen.choice(shards[2:])]
    victims = chosen.choices([one, several, shards[:2]], [7, 2, 1])[0]
    action = chosen.choice(ACTIONS[:3] if victims[0] in fronts else ACTIONS)
    begun, hold_s = time.monotonic(), chosen.uniform(*HOLD_S)
    with ThreadPoolExecutor(len(victims)) as threads:
        list(threads.map(lambda each: action(each, hold_s), victims))
    until(lambda: recovered(fronts, shards))
    now = time.monotonic()
    excused = victims[0].name if victims[0] in fronts else ""
    if excused or victims == shards[:2]:
        seen.allowed.append((excused, begun, now))
    who = "front" if excused else "shard" if victims == shards[:2] else "replica"
    return f"{who} {action.__name__}", now - begun - hold_s


def run(moments: int, seed: int, towers: Path) -> list[str]:
    """Disturbs a cluster so many times; returns what is wrong."""
    recovery, done = defaultdict[str, list[float]](list), threading.Event()
    with tempfile.TemporaryDirectory() as scratch:
        root, older = (Path(scratch) / name / "bundles" for name in ("now", "older"))
        for place, version in ((root, VERSION), (older, OLDER)):
            place.mkdir(parents=True)
            write_small_bundle(place, towers, MODEL, version, row_types={"movies": "int8"}, partitions=3)
        alone = Process(root)
        with alone.client() as client:
            until(lambda: is_ready(client))
        seen = Seen({call: deterministic(call, post(alone.ports["http"], call)) for call in REQUESTS})
        alone.kill()
        with cluster(root, older) as (fronts, shards), ThreadPoolExecutor(4) as threads:
            jobs = [threads.submit(repeat, front, way, seen, done) for front in fronts for way in ("http", "grpc")]
            try:
                for moment in range(moments):
                    what, seconds = disturb(fronts, shards, seen, seed + moment)
                    recovery[what].append(seconds)
            finally:
                done.set()
            for job in jobs:
                job.result()
    problems = seen.problems()
    for what, times in sorted(recovery.items()):
        SHOW.print(f"{what}, {len(times)} times: recovered after {np.median(times):.1f} s, {max(times):.1f} s at most")
    SHOW.print(f"{moments} moments from seed {seed}:", dict(seen.counts))
    return problems


def main() -> None:
    """Reads the arguments and runs."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--moments", type=int, default=100)
    arguments.add_argument("--seed", type=int, default=0)
    options = arguments.parse_args()
    problems = run(options.moments, options.seed, kept_towers())
    for problem in problems:
        SHOW.print("WRONG:", problem)
    SHOW.print("scale:", "failed" if problems else "passed")
    raise SystemExit(1 if problems else 0)


if __name__ == "__main__":
    main()
