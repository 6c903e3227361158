"""`make bench-fresh-peers`: rowcast beside engines that take changes while they are queried.

All of them hold the same vectors, on the same cores, one after the other. One caller sends queries
for the 100 nearest at a recall of at least 0.95, without and with a stream of changes in requests
of 50. `benchmarks/freshness.py` has the contest, `benchmarks/peers/servers/fresh_engines.py` the
peers.

The peers are pgvector, a server whose changes are on the disk when they are acknowledged, as those
of rowcast are, and Qdrant Edge, Qdrant's engine inside of the caller's process. Qdrant's and
Milvus' servers come in images and packages of systems, not as packages of Python.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from rich.console import Console
from rich.table import Table
from rowcast_client import Client

from benchmarks import cores
from benchmarks.freshness import RECALL, K, Vectors, measure
from benchmarks.peers.environments import ENVIRONMENTS
from benchmarks.services import Checkout, Service
from benchmarks.workloads import write_retrieval
from bundle.format import paths

MODEL = "retrieval"
PEERS = ("pgvector", "qdrant-edge")
TIMEOUT_S = 600.0


class Rowcast:
    """A service with some workers: queries over gRPC, changes by the admin API."""

    settings = (0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.99)

    def __init__(self, service: Service) -> None:
        self._client = Client(f"grpc://127.0.0.1:{service.grpc}", timeout_s=60)
        self._changes = httpx.Client(
            base_url=f"http://127.0.0.1:{service.admin}/v1/models/{MODEL}", timeout=60
        )
        self._recall = RECALL

    def use(self, setting: Any) -> None:
        """Has later queries searched at a recall, by the measured curve of the index."""
        self._recall = setting

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()
        self._changes.close()

    def query(self, vector: Vectors) -> Sequence[int]:
        """Returns the ids of the nearest."""
        neighbors = self._client.retrieve(vectors=vector, k=K, recall=self._recall)[0]
        return [int(key) for key in neighbors.ids]

    def upsert(self, ids: Sequence[int], vectors: Vectors) -> None:
        """Adds or replaces candidates with vectors of their own."""
        items = [
            {"id": key, "features": {"item": 0}, "vectors": {"items": vector.tolist()}}
            for key, vector in zip(ids, vectors, strict=True)
        ]
        self._changes.post("/candidates/upsert", json={"items": items}).raise_for_status()


def main() -> None:
    """Writes the workload, measures, prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fresh_peers", description=__doc__)
    parser.add_argument("--scale", type=float, default=0.1, help="1: a million candidates")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rate", type=int, default=1000, help="changes per second")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each throughput")
    options = parser.parse_args()
    console = Console(width=160)
    console.print(
        f"{time.strftime('%Y-%m-%d')}, commit {Checkout('this').commit()}, on {cores.host()}: "
        f"{cores.serve_on_few()}; scale {options.scale:g}, {options.workers} workers, "
        f"{options.rate} changes per second"
    )
    Path("build/bench").mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="fresh-peers-", dir="build/bench")).resolve()
    workload = write_retrieval(scratch / "bundles", options.scale, MODEL)
    corpus = np.fromfile(workload.directory / paths.index_vectors("items"), "<f4")
    corpus = corpus.reshape(-1, workload.vectors.shape[1])
    np.save(scratch / "corpus.npy", corpus)
    np.save(scratch / "queries.npy", workload.vectors)

    service = Service(
        Checkout("this"), scratch / "bundles", scratch, "f32", "--workers", str(options.workers)
    )
    try:
        with closing(Rowcast(service)) as engine:
            outcome = measure(engine, corpus, workload.vectors, options.rate, options.seconds)
    finally:
        service.close()
    outcomes = {"rowcast": outcome.as_dict()}
    for name in PEERS:
        outcomes[name] = _measured_peer(name, scratch, options.rate, options.seconds)
    console.print(_table(outcomes))
    shutil.rmtree(scratch)


def _measured_peer(name: str, scratch: Path, rate: int, seconds: float) -> dict[str, Any]:
    """Returns what was measured of a peer, or why it was not."""
    environment = ENVIRONMENTS["fresh"]
    if environment.problem:
        return {"problem": environment.problem}
    command = [environment.program("python"), "-m", "benchmarks.peers.servers.fresh_engines"]
    command += [name, str(scratch), str(rate), str(seconds)]
    variables = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    run = subprocess.run(
        command, capture_output=True, text=True, env=variables, timeout=TIMEOUT_S, check=False
    )
    if run.returncode:
        return {"problem": run.stderr.splitlines()[-1]}
    outcome: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return outcome


def _table(outcomes: dict[str, dict[str, Any]]) -> Table:
    table = Table(
        "engine",
        "setting",
        "recall, after",
        "queries/s alone",
        "beside changes",
        "p99",
        "changes/s",
        "visible p50",
        "p99",
    )
    for name, outcome in outcomes.items():
        if "problem" in outcome:
            table.add_row(name, outcome["problem"])
            continue
        table.add_row(
            name,
            outcome["setting"],
            f"{outcome['recall']:.3f}, {outcome['recall_after']:.3f}",
            f"{outcome['alone_per_s']:.0f}",
            f"{outcome['beside_per_s']:.0f}",
            f"{outcome['beside_p99_ms']:.1f} ms",
            f"{outcome['changes_per_s']:.0f}",
            f"{outcome['visible_ms']:.1f} ms",
            f"{outcome['visible_p99_ms']:.1f} ms",
        )
    return table


if __name__ == "__main__":
    main()
