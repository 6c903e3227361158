"""`make bench-fresh`: what changes of a served model cost, and how soon they are seen.

- visible: from the acknowledgement of a new candidate to the first response of a worker that has
  it, over connections of their own, which reach every worker;
- beside load: latency of queries that come at random instants, at half of the throughput, with and
  without a stream of changes, block by block;
- many changes: throughput of unfiltered queries with and without many changed candidates;
- restart: from the start of a service to the first response, with and without changes;
- live recall: CPU time of the service for a query, with and without 1 % of queries being searched
  exactly, too.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
from rich.console import Console

from benchmarks import cores
from benchmarks.load import Endpoint, Load, Responses
from benchmarks.services import Checkout, Service
from benchmarks.workload_towers import ITEM_DIM
from benchmarks.workloads import RetrievalWorkload, write_retrieval
from bundle.changes.file import FILE_NAME

MODEL = "retrieval"
BATCH = 50
"""Changes in a request of the stream."""
CALLERS = 8
"""That send queries at once where throughput is measured."""
STREAM_POLL_S = 0.05
TIMEOUT_S = 60.0
FAILED_SHARE_MAX = 0.01
"""The share of the queries of a block that may be rejected, such as while the host is busy."""


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Attributes:
      new: The number of candidates that are added to see how soon they are found.
      throughput_s: The time for which throughput is measured.
      load: The queries per second of a block, as a share of the throughput.
      blocks: The number of blocks of queries beside changes.
      block_s: The length of a block.
      rate: Changes per second beside the queries.
      changed: The numbers of changed candidates, each of which throughput is measured with.
      cpu_s: The time for which the CPU time of the service is measured.
    """

    new: int
    throughput_s: float
    load: float
    blocks: int
    block_s: float
    rate: int
    changed: Sequence[int]
    cpu_s: float


class Client:
    """Sends queries and changes to one service.

    Attributes:
      admin: URL of the model in the admin API.
      service: The service.
      queries: Unfiltered queries of different users.
    """

    def __init__(self, service: Service, workload: RetrievalWorkload) -> None:
        self.service = service
        self._calls = httpx.Client(base_url=f"http://127.0.0.1:{service.http}", timeout=TIMEOUT_S)
        self.admin = f"http://127.0.0.1:{service.admin}/v1/models/{MODEL}"
        self._changes = httpx.Client(base_url=self.admin, timeout=TIMEOUT_S)
        bodies = [
            orjson.dumps(
                {"context": {"user": int(user), "history": history.tolist()}, "k": workload.k}
            )
            for user, history in zip(workload.users, workload.histories, strict=True)
        ]
        endpoint = Endpoint(service.http, f"/v1/models/{MODEL}:retrieve", "application/json")
        self.queries = Load(endpoint, bodies)

    def find(self, vector: list[float], k: int = 1) -> list[int]:
        """Returns the `k` neighbors of a vector, from whichever worker accepts a new connection."""
        body = {"vectors": [vector], "k": k}
        return self._retrieved(body, {"connection": "close"})

    def upsert(self, items: list[dict[str, Any]]) -> None:
        """Adds or replaces candidates."""
        self._changes.post("/candidates/upsert", json={"items": items}).raise_for_status()

    def sequence(self) -> int:
        """Returns the sequence of the last state: each changed candidate has one of its own."""
        response = self._changes.get("/changes").raise_for_status()
        sequence: int = response.json()["sequence"]
        return sequence

    def close(self) -> None:
        """Closes the connections, and removes the queries."""
        self._calls.close()
        self._changes.close()
        self.queries.close()

    def _retrieved(self, body: dict[str, Any], headers: dict[str, str] | None = None) -> list[int]:
        response = self._calls.post(f"/v1/models/{MODEL}:retrieve", json=body, headers=headers)
        response.raise_for_status()
        ids: list[int] = response.json()["ids"]
        return ids


def main() -> None:
    """Writes the workload, measures, prints."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.fresh", description=__doc__)
    options.add_argument("--scale", type=float, default=0.1, help="1: a million candidates")
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--new", type=int, default=100, help="candidates whose arrival is timed")
    options.add_argument("--seconds", type=float, default=5.0, help="of each throughput")
    options.add_argument("--rate", type=int, default=1000, help="changes per second beside load")
    options.add_argument("--load", type=float, default=0.5, help="share of the throughput")
    options.add_argument("--blocks", type=int, default=3, help="of changes beside load")
    options.add_argument("--block-seconds", type=float, default=60.0, help="of each of them")
    options.add_argument(
        "--changed", type=int, nargs="+", default=[10_000, 100_000], help="changed candidates"
    )
    options.add_argument("--cpu-seconds", type=float, default=20.0, help="of each CPU time")
    arguments = options.parse_args()
    plan = Plan(
        new=arguments.new,
        throughput_s=arguments.seconds,
        load=arguments.load,
        blocks=arguments.blocks,
        block_s=arguments.block_seconds,
        rate=arguments.rate,
        changed=sorted(arguments.changed),
        cpu_s=arguments.cpu_seconds,
    )
    console = Console(width=160)
    console.print(
        f"{time.strftime('%Y-%m-%d')}, commit {Checkout('this').commit()}, on {cores.host()}: "
        f"{cores.serve_on_few()}; scale {arguments.scale:g}, {arguments.workers} workers"
    )
    Path("build/bench").mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="fresh-", dir="build/bench")).resolve()
    root = scratch / "bundles"
    workload = write_retrieval(root, arguments.scale, MODEL)
    random = np.random.default_rng(1)

    with _served(root, scratch, arguments.workers, workload) as (client, start_s):
        without_s = start_s
        console.print(f"visible: {_milliseconds(_visibilities(client, plan.new, random))}")
        _beside_load(client, plan, console)
    _forget_changes(root)
    with _served(root, scratch, arguments.workers, workload) as (client, _):
        before = _throughput(client, plan)
        first = 0
        for changed in plan.changed:
            for start in range(first, changed, 500):
                end = min(start + 500, changed)
                client.upsert([_item(key, key) for key in range(start, end)])
            first = changed
            after = _throughput(client, plan)
            console.print(
                f"many changes: {before:.0f} queries per second; with {changed:,} changed "
                f"candidates {after:.0f} ({after / before:.2f} x)"
            )
    with _served(root, scratch, arguments.workers, workload) as (_, start_s):
        console.print(
            f"restart: {without_s:.1f} s without changes, {start_s:.1f} s with {first:,} changed "
            "candidates"
        )
    _forget_changes(root)
    without_cpu_s, with_cpu_s = (
        _cpu_of_a_query(root, scratch, arguments.workers, workload, plan, share)
        for share in (0.0, 0.01)
    )
    console.print(
        f"live recall of 1 % of queries: {1000 * with_cpu_s:.2f} ms of CPU time for a query, "
        f"{1000 * without_cpu_s:.2f} ms without ({with_cpu_s / without_cpu_s:.3f} x)"
    )
    shutil.rmtree(scratch)


def _forget_changes(root: Path) -> None:
    for path in (root / MODEL).glob(f"{FILE_NAME}*"):
        path.unlink()


def _cpu_of_a_query(
    root: Path,
    scratch: Path,
    workers: int,
    workload: RetrievalWorkload,
    plan: Plan,
    share: float,
) -> float:
    """Returns the CPU seconds that the service takes for a query, at most of its throughput.

    Args:
      root, scratch, workers, workload: As of `_served`.
      plan: How long it is measured.
      share: Of the queries that are searched exactly, too.
    """
    option = f"--live-recall-share={share:g}"
    with _served(root, scratch, workers, workload, option) as (client, _):
        _throughput(client, plan)
        before_s = client.service.cpu_s()
        responses = client.queries.closed(CALLERS, plan.cpu_s)
        return (client.service.cpu_s() - before_s) / responses.succeeded


@contextmanager
def _served(
    root: Path, scratch: Path, workers: int, workload: RetrievalWorkload, *options: str
) -> Iterator[tuple[Client, float]]:
    """Serves a root; yields a client, and the seconds to the first response."""
    began = time.perf_counter()
    service = Service(Checkout("this"), root, scratch, "f32", "--workers", str(workers), *options)
    try:
        with closing(Client(service, workload)) as client:
            client.find([0.0] * ITEM_DIM)
            yield client, time.perf_counter() - began
    finally:
        service.close()


def _item(key: int, row: int) -> dict[str, Any]:
    return {"id": key, "features": {"item": row}, "attributes": {"group": 1}}


def _visibilities(client: Client, count: int, random: np.random.Generator) -> list[float]:
    """Returns the seconds until each of `count` new candidates was seen by four connections."""
    seconds = []
    for number in range(count):
        vector = (10 + random.standard_normal(ITEM_DIM)).astype(np.float32).tolist()
        key = 10_000_000 + number
        client.upsert([{**_item(key, 0), "vectors": {"items": vector}}])
        began = time.perf_counter()
        seen = 0
        while seen < 4:
            # More than there are new candidates, which are all near each other.
            seen = seen + 1 if key in client.find(vector, 2 * count) else 0
        seconds.append(time.perf_counter() - began)
    return seconds


def _beside_load(client: Client, plan: Plan, console: Console) -> None:
    """Prints the latency of queries alone, block by block beside a stream of changes, and alone
    again.
    """
    rate = plan.load * _throughput(client, plan)
    alone = [_block(client, rate, plan.block_s, seed=0)]
    console.print(f"queries alone, {rate:.0f} per second: {_latencies(alone[0])}")
    # In a process of its own, which takes no time of the interpreter that measures.
    stream = multiprocessing.get_context("spawn").Process(
        target=_stream, args=(client.admin, plan.rate), daemon=True
    )
    before = client.sequence()
    stream.start()
    while client.sequence() == before:
        if not stream.is_alive():
            raise RuntimeError("the stream of changes ended before its first change")
        time.sleep(STREAM_POLL_S)
    blocks_beside = []
    for number in range(1, plan.blocks + 1):
        before = client.sequence()
        block = _block(client, rate, plan.block_s, seed=number)
        blocks_beside.append(block)
        changes_per_s = (client.sequence() - before) / plan.block_s
        console.print(
            f"block {number}, {changes_per_s:.0f} changes per second: {_latencies(block)}"
        )
    stream.kill()
    stream.join()
    alone.append(_block(client, rate, plan.block_s, seed=plan.blocks + 1))
    console.print(f"queries alone again: {_latencies(alone[1])}")
    alone_ms, beside_ms = (
        np.median([responses.percentile_ms(99) for responses in blocks])
        for blocks in (alone, blocks_beside)
    )
    console.print(f"p99 beside changes: {beside_ms / alone_ms:.2f} x that alone (medians)")


def _block(client: Client, rate: float, seconds: float, seed: int) -> Responses:
    """Sends queries at random instants, `rate` per second on average.

    Raises:
      RuntimeError: More than 1 percent failed. A busy host can make an overloaded service reject
        some.
    """
    responses = client.queries.open(rate, seconds, seed)
    if responses.failed > FAILED_SHARE_MAX * len(responses.status):
        raise RuntimeError(f"{responses.failed} of {len(responses.status)} queries failed")
    return responses


def _stream(admin: str, rate: int) -> None:
    """Sends changes until it is killed.

    Args:
      admin: URL of the model in the admin API.
      rate: Changes per second.
    """
    with httpx.Client(base_url=admin, timeout=TIMEOUT_S) as changes:
        due = time.perf_counter()
        for number in itertools.count():
            first = 20_000_000 + (number * BATCH) % 5000
            items = [_item(first + key, key) for key in range(BATCH)]
            changes.post("/candidates/upsert", json={"items": items}).raise_for_status()
            due += BATCH / rate
            time.sleep(max(0.0, due - time.perf_counter()))


def _throughput(client: Client, plan: Plan) -> float:
    """Returns how many queries per second several callers send at most."""
    return client.queries.closed(CALLERS, plan.throughput_s).requests_per_s


def _latencies(responses: Responses) -> str:
    p50_ms = responses.percentile_ms(50)
    p99_ms = responses.percentile_ms(99)
    return f"p50 {p50_ms:.1f} ms, p99 {p99_ms:.1f} ms, {responses.failed} rejected"


def _milliseconds(seconds: Sequence[float]) -> str:
    half, most = 1000 * np.percentile(seconds, [50, 99])
    return f"p50 {half:.1f} ms, p99 {most:.1f} ms"


if __name__ == "__main__":
    main()
