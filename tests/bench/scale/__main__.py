"""`make bench-scale`: a front with its shards beside one process that has everything, on workloads R and Q.

Both are saturated by a closed loop, then loaded with half of what they answered, in turns. All share the cores of this
machine, where the shards take from the front what other machines would give: the CPU of the front alone says what one
machine of a cluster answers.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import httpx
import numpy as np
from rich.console import Console

from tests.bench import cores, requests
from tests.bench.__main__ import host
from tests.bench.load import Endpoint, Load
from tests.bench.report import Sheet
from tests.bench.rounds import SETTLE_S, Rounds, block_of
from tests.bench.services import Checkout, Service
from tests.bench.workload_towers import DIM, ITEM_DIM
from tests.bench.workloads import write_ranking, write_retrieval

ALL = ("--shard-least-bytes", "1")
CALLERS = 16
OPEN = 0
"""In place of the number of callers: the open loop at half of what was answered."""


@dataclass(frozen=True)
class Workload:
    """Requests of one kind, and the bytes of the distinct rows that one of them reads, on average."""

    name: str
    path: str
    bodies: Sequence[bytes]
    row_bytes: float


class Local:
    """One process that has everything."""

    name = "local"

    def __init__(self, root: Path, scratch: Path, *options: str) -> None:
        self.service = Service(Checkout("this"), root, scratch, "f32", *options)

    def cpu_s(self) -> tuple[float, float]:
        """Returns the CPU seconds that the process used so far, and those of its shards."""
        return self.service.cpu_s(), 0.0

    def shard_bytes(self) -> float:
        """Returns the bytes that shards have answered so far."""
        lines = httpx.get(f"http://127.0.0.1:{self.service.http}/metrics", timeout=30).text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("rowcast_shard_bytes_total"))

    def close(self) -> None:
        """Ends it."""
        self.service.close()


class Cluster(Local):
    """A front and its shards."""

    name = "front"

    def __init__(self, root: Path, scratch: Path, total: int) -> None:
        with ExitStack() as started:
            self._shards = [
                Service(Checkout("this"), root, scratch, "f32", "--shard", f"{number}/{total}", *ALL)
                for number in range(1, total + 1)
            ]
            for each in self._shards:
                started.callback(each.close)
            addresses = [text for each in self._shards for text in ("--shard-addresses", f"127.0.0.1:{each.grpc}")]
            super().__init__(root, scratch, *addresses, *ALL)
            self._close_shards = started.pop_all().close

    def cpu_s(self) -> tuple[float, float]:
        """See Local."""
        return self.service.cpu_s(), sum(each.cpu_s() for each in self._shards)

    def close(self) -> None:
        """Ends the front and its shards."""
        super().close()
        self._close_shards()


@dataclass
class Measured:
    """What a workload did: figures by contestant, in rounds."""

    rounds: Rounds
    shards_cpu_ms: list[float]
    overhead: list[float]


def workloads(root: Path, scale: float) -> list[Workload]:
    """Writes the bundles of R and Q."""
    rank, retrieve = write_ranking(root, scale), write_retrieval(root, scale)
    columns = [*rank.context.values(), *rank.candidates.values()]
    ranked = [sum(np.unique(each[at]).size for each in columns) for at in range(len(rank.numbers))]
    retrieved = [1 + np.unique(each).size for each in retrieve.histories]  # and the user
    rank_bytes, retrieve_bytes = 4 * DIM * float(np.mean(ranked)), 4 * ITEM_DIM * float(np.mean(retrieved))
    return [
        Workload("R", "/v1/models/ranking:rank", requests.rank_messages(rank), rank_bytes),
        Workload("Q", "/v1/models/retrieval:retrieve", requests.retrieve_messages(retrieve), retrieve_bytes),
    ]


def measure(work: Workload, contestants: Sequence[Local], rounds: int, seconds: float) -> Measured:
    """Loads the contestants in turns."""
    found = Measured(Rounds(seconds), [], [])
    with ExitStack() as loads:
        by = dict[str, Load]()
        for each in contestants:
            endpoint = Endpoint(each.service.http, work.path, "application/x-protobuf")
            by[each.name] = loads.enter_context(closing(Load(endpoint, work.bodies)))
        for number in range(rounds):
            for each in contestants if number % 2 else reversed(contestants):
                load = by[each.name]
                load.closed(CALLERS, SETTLE_S)
                before, bytes_before = each.cpu_s(), each.shard_bytes()
                answers = load.closed(CALLERS, seconds)
                after, answered = each.cpu_s(), each.shard_bytes() - bytes_before
                found.rounds.add(each.name, CALLERS, block_of(answers, after[0] - before[0]))
                if answered:
                    found.shards_cpu_ms.append((after[1] - before[1]) / max(1, answers.answered) * 1e3)
                    found.overhead.append(answered / len(answers.status) / work.row_bytes)
                half = load.open(answers.requests_per_s / 2, seconds, seed=number)
                found.rounds.add(each.name, OPEN, block_of(half, 0.0))
    return found


def sheet(found: dict[str, Measured], shards: int) -> Sheet:
    """Returns the ratios."""
    rows = list[tuple[str, ...]]()
    for name, each in found.items():
        rounds = each.rounds
        local, front = (rounds.block(one, OPEN) for one in ("local", "front"))
        cpu = rounds.block("local", CALLERS).cpu_ms
        rows.append(
            (
                name,
                f"{rounds.ratio('front', 'local', CALLERS):.2f}",
                f"{rounds.ratio('front', 'local', CALLERS, 'cpu_ms'):.2f}",
                f"{median(each.shards_cpu_ms) / cpu:.2f}",
                f"{local.p50_ms:.1f} / {local.p99_ms:.1f}",
                f"{front.p50_ms:.1f} / {front.p99_ms:.1f}",
                f"{front.p99_ms - local.p99_ms:+.1f}",
                f"{median(each.overhead):.3f}",
                f"{front.failed:.1%}",
            )
        )
    columns = ["workload", "requests/s", "CPU of the front", "CPU of the shards", "local: p50 / p99 ms at half"]
    columns += ["front", "p99 ms beyond", "bytes answered by bytes of rows", "failed"]
    return Sheet(f"A front of {shards} shards, by one local process", columns, rows)


def main() -> None:
    """Writes the workloads, measures, prints."""
    options = argparse.ArgumentParser(prog="python -m tests.bench.scale", description=__doc__)
    options.add_argument("--scale", type=float, default=0.1, help="1: 10 million rows and a million candidates")
    options.add_argument("--shards", type=int, default=4)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--seconds", type=float, default=2.0, help="of each block of load")
    given = options.parse_args()
    console = Console(width=250)
    split, commit = cores.serve_on_few(), Checkout("this").commit()
    console.print(f"{time.strftime('%Y-%m-%d')}, commit {commit}, on {host()}: {split}; scale {given.scale:g}")
    Path("build/bench").mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="scale-", dir="build/bench"))
    root = scratch / "bundles"
    works = workloads(root, given.scale)
    with closing(Local(root, scratch)) as local, closing(Cluster(root, scratch, given.shards)) as cluster:
        found = {work.name: measure(work, (local, cluster), given.rounds, given.seconds) for work in works}
    sheet(found, given.shards).show(console)
    shutil.rmtree(root)


if __name__ == "__main__":
    main()
