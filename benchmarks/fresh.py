"""`make bench-fresh`: what changes of a served model cost, and how soon they are seen.

- visible: from the acknowledgement of a new candidate to the first response of a worker that has
  it, over connections of their own, which reach every worker;
- beside load: latency of queries that come at random instants, at half of the throughput, with and
  without a stream of changes, minute by minute;
- many changes: throughput of unfiltered queries with and without many changed candidates;
- restart: from the start of a service to the first response, with and without the log;
- replay: the same with a log of 100,000 records;
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
from bundle.changes.log import ChangeLog

MODEL = "retrieval"
NEW = 100
"""Candidates that are added to see how soon they are found."""
BATCH = 50
"""Changes in a request of the stream."""
CALLERS = 8
"""That send queries at once where throughput is measured."""
THROUGHPUT_S = 5.0
"""Seconds for which throughput is measured."""
MINUTE_S = 60.0
"""Seconds of a block of queries at random instants."""
CPU_S = 20.0
"""Seconds for which the CPU time of the service is measured."""
RECORDS = 100_000
"""In the log that is replayed, each of one candidate, of which a hundredth differ."""
TIMEOUT_S = 60.0
FAILED_SHARE_MAX = 0.01
"""The share of the queries of a minute that may be rejected, such as while the host is busy."""


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

    def find(self, vector: list[float]) -> list[int]:
        """Returns the neighbors of a vector, from whichever worker accepts a new connection: more
        than there are new candidates, which are all near each other.
        """
        body = {"vectors": [vector], "k": 2 * NEW}
        return self._retrieved(body, {"connection": "close"})

    def upsert(self, items: list[dict[str, Any]]) -> None:
        """Adds or replaces candidates."""
        self._changes.post("/candidates/upsert", json={"items": items}).raise_for_status()

    def sequence(self) -> int:
        """Returns how many records the change log has."""
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
    options.add_argument("--rate", type=int, default=1000, help="changes per second")
    options.add_argument("--minutes", type=int, default=3, help="of changes beside load")
    options.add_argument(
        "--changed", type=int, nargs="+", default=[10_000, 100_000], help="changed candidates"
    )
    arguments = options.parse_args()
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
        console.print(f"visible: {_milliseconds(_visibilities(client, random))}")
        _beside_load(client, arguments.rate, arguments.minutes, console)
    _forget_changes(root)
    with _served(root, scratch, arguments.workers, workload) as (client, _):
        before = _throughput(client)
        first = 0
        for changed in sorted(arguments.changed):
            for start in range(first, changed, 500):
                end = min(start + 500, changed)
                client.upsert([_item(key, key) for key in range(start, end)])
            first = changed
            after = _throughput(client)
            console.print(
                f"many changes: {before:.0f} queries per second; with {changed:,} changed "
                f"candidates {after:.0f} ({after / before:.2f} x)"
            )
    with _served(root, scratch, arguments.workers, workload) as (_, start_s):
        console.print(
            f"restart: {without_s:.1f} s without a log, {start_s:.1f} s with {first:,} changes in "
            "it"
        )
    _forget_changes(root)
    _write_records(root, scratch, workload)
    with _served(root, scratch, arguments.workers, workload) as (_, start_s):
        console.print(f"replay: {start_s:.1f} s with {RECORDS:,} records in the log")
    _forget_changes(root)
    without_cpu_s, with_cpu_s = (
        _cpu_of_a_query(root, scratch, arguments.workers, workload, share) for share in (0.0, 0.01)
    )
    console.print(
        f"live recall of 1 % of queries: {1000 * with_cpu_s:.2f} ms of CPU time for a query, "
        f"{1000 * without_cpu_s:.2f} ms without ({with_cpu_s / without_cpu_s:.3f} x)"
    )
    shutil.rmtree(scratch)


def _forget_changes(root: Path) -> None:
    (root / MODEL / "changes.log").unlink(missing_ok=True)


def _write_records(root: Path, scratch: Path, workload: RetrievalWorkload) -> None:
    """Writes a log of many records of one candidate each."""
    distinct = RECORDS // 100
    with _served(root, scratch, 1, workload) as (client, _):
        for key in range(distinct):
            client.upsert([_item(key, key)])
    log = ChangeLog(root / MODEL / "changes.log", MODEL)
    payloads = [record.payload for record in log.read()]
    with log.writing() as writer:
        writer.read()
        for payload in payloads * (RECORDS // distinct - 1):
            writer.append(payload)
        writer.commit()


def _cpu_of_a_query(
    root: Path, scratch: Path, workers: int, workload: RetrievalWorkload, share: float
) -> float:
    """Returns the CPU seconds that the service takes for a query, at most of its throughput.

    Args:
      root, scratch, workers, workload: As of `_served`.
      share: Of the queries that are searched exactly, too.
    """
    option = f"--live-recall-share={share:g}"
    with _served(root, scratch, workers, workload, option) as (client, _):
        _throughput(client)
        before_s = client.service.cpu_s()
        responses = client.queries.closed(CALLERS, CPU_S)
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


def _visibilities(client: Client, random: np.random.Generator) -> list[float]:
    """Returns the seconds until each of some new candidates was seen by four connections."""
    seconds = []
    for number in range(NEW):
        vector = (10 + random.standard_normal(ITEM_DIM)).astype(np.float32).tolist()
        key = 10_000_000 + number
        client.upsert([{**_item(key, 0), "vectors": {"items": vector}}])
        began = time.perf_counter()
        seen = 0
        while seen < 4:
            seen = seen + 1 if key in client.find(vector) else 0
        seconds.append(time.perf_counter() - began)
    return seconds


def _beside_load(client: Client, rate: int, minutes: int, console: Console) -> None:
    """Prints the latency of queries alone, minute by minute beside a stream of changes, and alone
    again.
    """
    half_load = _throughput(client) / 2
    alone = [_minute(client, half_load, seed=0)]
    console.print(f"queries alone, {half_load:.0f} per second: {_latencies(alone[0])}")
    # In a process of its own, which takes no time of the interpreter that measures.
    stream = multiprocessing.get_context("spawn").Process(
        target=_stream, args=(client.admin, rate), daemon=True
    )
    stream.start()
    minutes_beside = []
    for number in range(1, minutes + 1):
        before = client.sequence()
        loaded_minute = _minute(client, half_load, seed=number)
        minutes_beside.append(loaded_minute)
        changes_per_s = BATCH * (client.sequence() - before) / MINUTE_S
        console.print(
            f"minute {number}, {changes_per_s:.0f} changes per second: {_latencies(loaded_minute)}"
        )
    stream.kill()
    stream.join()
    alone.append(_minute(client, half_load, seed=minutes + 1))
    console.print(f"queries alone again: {_latencies(alone[1])}")
    alone_ms, beside_ms = (
        np.median([responses.percentile_ms(99) for responses in blocks])
        for blocks in (alone, minutes_beside)
    )
    console.print(f"p99 beside changes: {beside_ms / alone_ms:.2f} x that alone (medians)")


def _minute(client: Client, rate: float, seed: int) -> Responses:
    """Sends queries at random instants for a minute, `rate` per second on average.

    Raises:
      RuntimeError: More than 1 percent failed. A busy host can make an overloaded service reject
        some.
    """
    responses = client.queries.open(rate, MINUTE_S, seed)
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


def _throughput(client: Client) -> float:
    """Returns how many queries per second several callers send at most."""
    return client.queries.closed(CALLERS, THROUGHPUT_S).requests_per_s


def _latencies(responses: Responses) -> str:
    p50_ms = responses.percentile_ms(50)
    p99_ms = responses.percentile_ms(99)
    return f"p50 {p50_ms:.1f} ms, p99 {p99_ms:.1f} ms, {responses.failed} rejected"


def _milliseconds(seconds: Sequence[float]) -> str:
    half, most = 1000 * np.percentile(seconds, [50, 99])
    return f"p50 {half:.1f} ms, p99 {most:.1f} ms"


if __name__ == "__main__":
    main()
