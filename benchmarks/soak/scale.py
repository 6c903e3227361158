"""`python -m benchmarks.soak.scale`: two routers and two replicas of each of two shards, disturbed
at random moments.

Processes are killed, stopped, slowed, or serve an older version for a while: one alone, one of each
shard, or both replicas of a shard. Exit code 1: a response differs from that of one process which
has everything, or a request failed although its router was there, and a replica of each shard.
Nodes that are lost: benchmarks/soak/scale_on_ray.py; a full disk:
tests/units/service/shards/test_pulled.py.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from benchmarks.soak.callers import (
    Listener,
    Seen,
    exit_with,
    lasting_port,
    load,
    moments_parser,
    seen_of_one,
)
from benchmarks.soak.publishing import MODEL
from benchmarks.soak.switches import kept_towers
from tests.bundles.small import write_small_bundle
from tests.e2e.process import WAIT_S, Process, until
from tests.e2e.services import is_ready

OLDER = 1
VERSION = 2
ALL = ("--shard-min-bytes", "1")
HOLD_S = (0.1, 1.5)
"""How long a disturbance lasts, at least and at most."""
SLOW_S = (0.05, 0.02)
"""A slow process stands still and goes on in turns."""


class Member:
    """A router or a shard, which is started again on the same ports."""

    def __init__(self, name: str, root: Path, older: Path, *options: str) -> None:
        self._root = root
        self._older = older
        self._options = options
        self.at = Listener(name, lasting_port(), lasting_port())
        self.admin = lasting_port()
        self.process = self._start(root)

    def _start(self, root: Path) -> Process:
        http = str(self.at.http)
        grpc = str(self.at.grpc)
        admin = str(self.admin)
        ports = ("--http-port", http, "--grpc-port", grpc, "--admin-port", admin)
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
        with self.process.paused():
            time.sleep(hold_s)

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


# The first three are for routers.
ACTIONS = (
    Member.is_killed,
    Member.is_stopped,
    Member.is_slow,
    Member.is_older,
)


def recovered(routers: Sequence[Member], shards: Sequence[Member]) -> bool:
    """Returns whether every router is ready and reaches all that every shard holds."""
    with suppress(httpx.HTTPError):
        for router in routers:
            with httpx.Client(
                base_url=f"http://127.0.0.1:{router.at.http}", timeout=WAIT_S
            ) as client:
                if not is_ready(client):
                    return False
            (process,) = httpx.get(
                f"http://127.0.0.1:{router.admin}/v1/topology", timeout=WAIT_S
            ).json()["processes"]
            whole = [
                shard
                for shard in process["shards"]
                if f"{MODEL}/{VERSION}" in shard["holds"] and not shard["problem"]
            ]
            if len(whole) != len(shards):
                return False
        return True
    return False


@contextmanager
def cluster(root: Path, older: Path) -> Iterator[tuple[list[Member], list[Member]]]:
    """Runs two routers, and two replicas of each of two shards."""
    shards = [
        Member(f"shard {n} {r}", root, older, "--shard", f"{n}/2", *ALL)
        for n in (1, 2)
        for r in "ab"
    ]
    addresses = [
        text for shard in shards for text in ("--shard-addresses", f"127.0.0.1:{shard.at.grpc}")
    ]
    routers = [
        Member(f"router {r}", root, older, *addresses, *ALL, "--request-timeout-s", "5")
        for r in "ab"
    ]
    try:
        until(lambda: recovered(routers, shards))
        yield routers, shards
    finally:
        for process in (*routers, *shards):
            process.process.kill()


def disturb(routers: list[Member], shards: list[Member], seen: Seen, seed: int) -> None:
    """Does something to some processes, and notes how long recovery took once it was over."""
    chosen = random.Random(seed)
    victim = [chosen.choice([*routers, *shards])]
    several = [chosen.choice(shards[:2]), chosen.choice(shards[2:])]
    victims = chosen.choices([victim, several, shards[:2]], [7, 2, 1])[0]
    action = chosen.choice(ACTIONS[:3] if victims[0] in routers else ACTIONS)
    begun = time.monotonic()
    hold_s = chosen.uniform(*HOLD_S)
    with ThreadPoolExecutor(len(victims)) as threads:
        list(threads.map(lambda victim: action(victim, hold_s), victims))
    until(lambda: recovered(routers, shards))
    now = time.monotonic()
    excused = victims[0].at.name if victims[0] in routers else ""
    if excused or victims == shards[:2]:
        seen.allowed.append((excused, begun, now))
    if excused:
        who = "router"
    elif victims == shards[:2]:
        who = "shard"
    else:
        who = "replica"
    seen.recovered(f"{who} {action.__name__}", now - begun - hold_s)


def run(moments: int, seed: int, towers: Path) -> list[str]:
    """Disturbs a cluster `moments` times; returns what is wrong."""
    with tempfile.TemporaryDirectory() as scratch:
        root, older = (Path(scratch) / name / "bundles" for name in ("now", "older"))
        for directory, version in ((root, VERSION), (older, OLDER)):
            directory.mkdir(parents=True)
            write_small_bundle(
                directory, towers, MODEL, version, row_types={"movies": "int8"}, partitions=3
            )
        seen = seen_of_one(root)
        with (
            cluster(root, older) as (routers, shards),
            load([router.at for router in routers], seen),
        ):
            for moment in range(moments):
                disturb(routers, shards, seen, seed + moment)
    return seen.report()


def main() -> None:
    """Reads the arguments and runs."""
    options = moments_parser().parse_args()
    exit_with(run(options.moments, options.seed, kept_towers()))


if __name__ == "__main__":
    main()
