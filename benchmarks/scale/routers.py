"""A router with its shards beside one process that has everything, on workloads R and Q.

Both are saturated by a closed loop, then loaded with half of that throughput, in turns. All
share the cores of this machine, where the shards take from the router what other machines would
give: the CPU of the router alone shows what one machine of a cluster serves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import httpx
import numpy as np

from benchmarks import requests
from benchmarks.load import Endpoint, Load
from benchmarks.report import Sheet
from benchmarks.rounds import SETTLE_S, Rounds, block_of
from benchmarks.services import Checkout, Service
from benchmarks.workload_towers import DIM, ITEM_DIM
from benchmarks.workloads import RankingWorkload, RetrievalWorkload

PROTOBUF = "application/x-protobuf"
CALLERS = 16
OPEN = 0
"""In place of the number of callers: the open loop at half of the throughput."""


@dataclass(frozen=True)
class Workload:
    """Requests of one kind, and the bytes of the distinct rows that one of them reads,
    on average.
    """

    name: str
    path: str
    bodies: Sequence[bytes]
    row_bytes: float


class Cluster:
    """A router and its shards; without any, one process that has everything."""

    def __init__(self, root: Path, scratch: Path, total: int) -> None:
        """Starts them over a root of bundles."""
        checkout = Checkout("this")
        least = ("--shard-min-bytes", "1")
        with ExitStack() as started:
            shards = [
                started.enter_context(
                    closing(
                        Service(
                            checkout, root, scratch, "f32", "--shard", f"{shard}/{total}", *least
                        )
                    )
                )
                for shard in range(1, total + 1)
            ]
            options = [
                text
                for shard in shards
                for text in ("--shard-addresses", f"127.0.0.1:{shard.grpc}")
            ]
            self.router = started.enter_context(
                closing(Service(checkout, root, scratch, "f32", *options, *least))
            )
            self.shards = shards
            self.close = started.pop_all().close

    def cpu_s(self) -> tuple[float, float]:
        """Returns the CPU seconds that the router used so far, and those of its shards."""
        return self.router.cpu_s(), sum(shard.cpu_s() for shard in self.shards)

    def shard_bytes(self) -> float:
        """Returns the bytes that shards have returned so far."""
        lines = httpx.get(
            f"http://127.0.0.1:{self.router.http}/metrics", timeout=30
        ).text.splitlines()
        return sum(
            float(line.split()[-1])
            for line in lines
            if line.startswith("rowcast_shard_bytes_total")
        )


def workloads(rank: RankingWorkload, retrieve: RetrievalWorkload) -> list[Workload]:
    """Returns R and Q as they are sent."""
    columns = [*rank.context.values(), *rank.candidates.values()]
    ranked = [
        sum(np.unique(column[number]).size for column in columns)
        for number in range(len(rank.numbers))
    ]
    retrieved = [1 + np.unique(history).size for history in retrieve.histories]  # and the user
    rank_bytes = 4 * DIM * float(np.mean(ranked))
    retrieve_bytes = 4 * ITEM_DIM * float(np.mean(retrieved))
    return [
        Workload("R", "/v1/models/ranking:rank", requests.rank_messages(rank), rank_bytes),
        Workload(
            "Q",
            "/v1/models/retrieval:retrieve",
            requests.retrieve_messages(retrieve),
            retrieve_bytes,
        ),
    ]


def measure(
    work: Workload, clusters: Mapping[str, Cluster], rounds: int, seconds: float
) -> tuple[str, ...]:
    """Loads `local` and `router` in turns; returns figures of the second by those of the first."""
    measured = Rounds(seconds)
    shards_cpu_ms = list[float]()
    overhead = list[float]()
    with ExitStack() as opened:
        endpoints = {
            name: Endpoint(cluster.router.http, work.path, PROTOBUF)
            for name, cluster in clusters.items()
        }
        loads = {
            name: opened.enter_context(closing(Load(endpoint, work.bodies)))
            for name, endpoint in endpoints.items()
        }
        for number in range(rounds):
            for name in loads if number % 2 else reversed(loads):
                cluster = clusters[name]
                load = loads[name]
                load.closed(CALLERS, min(SETTLE_S, seconds))
                before = cluster.cpu_s()
                bytes_before = cluster.shard_bytes()
                responses = load.closed(CALLERS, seconds)
                after = cluster.cpu_s()
                response_bytes = cluster.shard_bytes() - bytes_before
                measured.add(name, CALLERS, block_of(responses, after[0] - before[0]))
                if response_bytes:
                    shards_cpu_ms.append((after[1] - before[1]) / max(1, responses.succeeded) * 1e3)
                    overhead.append(response_bytes / len(responses.status) / work.row_bytes)
                measured.add(
                    name,
                    OPEN,
                    block_of(load.open(responses.requests_per_s / 2, seconds, seed=number), 0.0),
                )
    local, router = (measured.block(name, OPEN) for name in ("local", "router"))
    return (
        work.name,
        f"{measured.ratio('router', 'local', CALLERS):.2f}",
        f"{measured.ratio('router', 'local', CALLERS, 'cpu_ms'):.2f}",
        f"{median(shards_cpu_ms) / measured.block('local', CALLERS).cpu_ms:.2f}",
        f"{local.p50_ms:.1f} / {local.p99_ms:.1f}",
        f"{router.p50_ms:.1f} / {router.p99_ms:.1f}",
        f"{router.p99_ms - local.p99_ms:+.1f}",
        f"{median(overhead):.3f}",
        f"{router.failed:.1%}",
    )


def compare(
    rank: RankingWorkload,
    retrieve: RetrievalWorkload,
    scratch: Path,
    shards: int,
    rounds: int,
    seconds: float,
) -> Sheet:
    """Measures both workloads, whose bundles have one root."""
    root = rank.directory.parents[1]
    with (
        closing(Cluster(root, scratch, 0)) as local,
        closing(Cluster(root, scratch, shards)) as router,
    ):
        clusters = {"local": local, "router": router}
        rows = [measure(work, clusters, rounds, seconds) for work in workloads(rank, retrieve)]
    columns = [
        "workload",
        "requests/s",
        "CPU of the router",
        "CPU of the shards",
        "local: p50 / p99 ms at half",
    ]
    columns += ["router", "p99 ms beyond", "bytes of responses / bytes of rows", "failed"]
    return Sheet(f"A router of {shards} shards, by one local process", columns, rows)
