"""Processes against threads: `python -m tests.bench.workers` serves R and Q in several arrangements and compares them.

Each arrangement is a service of its own, all of them measured in turns; memory is taken once each has answered, in
proportional set size: pages that workers share, the tables among them, count once. Then starts of R alone are timed,
as it is and with a table larger than the machine.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from bundle.staging import read_manifest
from tests.bench import requests
from tests.bench.load import Door, Load
from tests.bench.rounds import Block, Contestant, Rounds
from tests.bench.services import Service
from tests.bench.workloads import RankingWorkload, RetrievalWorkload, write_ranking, write_retrieval
from tests.sparse_tables import add_sparse_table

ARRANGEMENTS = ((1, 1), (1, 2), (2, 1), (2, 2))
"""Workers, and threads that compute in each."""
CALLERS = (1, 8, 32)
STARTS = 5
VAST_BYTES = 64 << 30
PROTOBUF = "application/x-protobuf"
WORKLOADS = {"ranking": "R", "retrieval": "Q"}


@dataclass(frozen=True)
class Measured:
    """What an arrangement did.

    Attributes:
      ready_s: from process start.
      memory_bytes: proportional set size of all of its processes.
      blocks: by workload (`R`, `Q`), then by block (`closed 8`).
    """

    workers: int
    threads: int
    ready_s: float
    memory_bytes: int
    blocks: dict[str, dict[str, Block]]


def measure(
    root: Path,
    ranking: RankingWorkload,
    retrieval: RetrievalWorkload,
    rounds: int,
    seconds: float,
    arrangements: Sequence[tuple[int, int]] = ARRANGEMENTS,
    precision: str = "f32",
) -> list[Measured]:
    """Serves both workloads in every arrangement, and asks over HTTP in protobuf.

    Args:
      root: of the bundles.
      ranking: R, which lies there.
      retrieval: Q, which does too.
      rounds: how often each has its turn.
      seconds: of each block.
      arrangements: workers and threads.
      precision: of the towers.
    """
    bodies = {"ranking": requests.rank_messages(ranking), "retrieval": requests.retrieve_messages(retrieval)}
    calls = {"ranking": "rank", "retrieval": "retrieve"}
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as opened:
        services, contestants = {}, []
        for workers, threads in arrangements:
            options = ("--workers", str(workers), "--threads", str(threads))
            service = services[workers, threads] = Service(root, precision, Path(scratch), *options)
            opened.callback(service.close)
            for model, sent in bodies.items():
                load = Load(Door(service.http, f"/v1/models/{model}:{calls[model]}", PROTOBUF), sent)
                opened.callback(load.close)
                contestants.append(Contestant(f"{WORKLOADS[model]} {workers} {threads}", service, load))
            service.pause()
        taken = Rounds(seconds)
        taken.warm_up(contestants)
        taken.closed(contestants, rounds, CALLERS)
        blocks = taken.blocks()
        return [
            Measured(
                workers,
                threads,
                service.ready_s,
                service.memory_bytes(),
                {short: blocks[f"{short} {workers} {threads}"] for short in WORKLOADS.values()},
            )
            for (workers, threads), service in services.items()
        ]


def show(found: Sequence[Measured], table_bytes: int, index_bytes: int, console: Console) -> None:
    """Prints a table, with ratios to the first arrangement, and what one more worker costs."""
    table = Table(title=f"tables {table_bytes / 1e6:.0f} MB, index and vectors {index_bytes / 1e6:.0f} MB on disk")
    heads = [f"{short} at {number}" for short in WORKLOADS.values() for number in CALLERS]
    for head in ("workers x threads", "ready s", "PSS MB", *heads):
        table.add_column(head, justify="right")
    for each in found:
        cells = [f"{each.workers} x {each.threads}", f"{each.ready_s:.2f}", f"{each.memory_bytes / 1e6:.0f}"]
        for short in WORKLOADS.values():
            for number in CALLERS:
                block, first = (one.blocks[short][f"closed {number}"] for one in (each, found[0]))
                ratio = block.requests_per_s / first.requests_per_s
                told = f"{block.requests_per_s:.0f}/s x{ratio:.2f} p99 {block.p99_ms:.1f} cpu {block.cpu_ms:.2f}"
                cells.append(told + (f" failed {block.failed:.1%}" if block.failed else ""))
        table.add_row(*cells)
    console.print(table)
    for one, more in ((one, more) for one in found for more in found):
        if one.threads == more.threads and more.workers == one.workers + 1:
            extra = more.memory_bytes - one.memory_bytes
            told = f"one more worker of {one.threads} threads: {extra / 1e6:.0f} MB, "
            told += f"{extra / table_bytes:.2f} of the tables' bytes; without its index "
            console.print(f"{told}{max(0, extra - index_bytes) / 1e6:.0f} MB")


def table_bytes_of(directory: Path) -> int:
    """Returns the bytes of a bundle's tables."""
    return sum(table.bytes for table in read_manifest(directory).tables.values())


def index_bytes_of(directory: Path) -> int:
    """Returns the bytes of a bundle's indexes, which each worker holds on its own."""
    return sum(each.stat().st_size for each in (directory / "indexes").rglob("*") if each.is_file())


def starts(root: Path, directory: Path, times: int, vast_bytes: int, console: Console) -> None:
    """Prints the times from process start to ready, and idle memory, without and with a table that is mostly a hole.

    Args:
      root: of the bundles.
      directory: of the bundle that gets the table.
      times: how often each is started.
      vast_bytes: of the table.
      console: where to.
    """
    with tempfile.TemporaryDirectory() as scratch:
        for told in ("as it is", f"with a table of {vast_bytes / (1 << 30):.0f} GiB"):
            if told != "as it is":
                add_sparse_table(directory, vast_bytes)
            ready, idle = [], 0
            for _ in range(times):
                service = Service(root, "f32", Path(scratch), "--verify-bytes-per-s", "0")
                ready.append(service.ready_s)
                idle = service.resident_bytes()
                service.close()
            console.print(f"start {told}: ready after {median(ready):.2f} s, {idle / 1e6:.0f} MB resident when idle")


def main() -> None:
    """Writes the workloads, measures, prints."""
    options = argparse.ArgumentParser(prog="python -m tests.bench.workers", description=__doc__)
    options.add_argument("--scale", type=float, default=0.1, help="1: 10 million rows and a million candidates")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--seconds", type=float, default=1.0, help="of each block")
    options.add_argument("--precision", choices=("f32", "int8"), default="f32")
    given = options.parse_args()
    root = Path(tempfile.mkdtemp(prefix="rowcast-workers-"))
    try:
        ranking, retrieval = write_ranking(root, given.scale), write_retrieval(root, given.scale)
        found = measure(root, ranking, retrieval, given.rounds, given.seconds, precision=given.precision)
        tables = table_bytes_of(ranking.directory) + table_bytes_of(retrieval.directory)
        console = Console(width=220)
        show(found, tables, index_bytes_of(retrieval.directory), console)
        shutil.rmtree(retrieval.directory.parent)
        starts(root, ranking.directory, STARTS, VAST_BYTES, console)
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
