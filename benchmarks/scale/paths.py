"""The distinct rows of one request of R by four paths: from shards called directly, by Serve's
handles and by a proxy that divides and merges, and from local tables.

Each path is what a router calls, `rows` of RemoteParts, in a process of its own. The shards are the
same replicas of Ray Serve, so that only the calls between the processes differ.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import ray
from numpy.typing import NDArray
from ray import serve

from benchmarks.report import Sheet
from benchmarks.rounds import Block, Rounds
from benchmarks.workloads import RankingWorkload
from bundle.features.sources import FetchedRows, remote_tables
from bundle.format.checksums import crc32c
from bundle.format.manifest import dump
from bundle.storage.catalog import read_manifest
from bundle.tables.reader import TableReader
from service.codec.stubs import shard_service_pb2 as shard_pb
from service.codec.stubs.shard_service_pb2_grpc import (
    ShardServiceServicer,
    add_ShardServiceServicer_to_server,
)
from service.config import ServiceSettings, read_settings
from service.engine.computation import RemoteCall, completed
from service.engine.context import RequestContext
from service.observability.metrics import Metrics
from service.ray_serve import Replica
from service.shards.messages import MESSAGE_LIMITS
from service.shards.remote_version import RemoteVersion, ShardCall
from service.shards.replica import Key
from service.shards.router import Shards
from service.shards.servicer import ShardServicer
from tests.e2e.ray_cluster import ServeCluster, free_port

Wanted = Mapping[str, NDArray[np.int64]]
"""Distinct ascending rows by layout."""
DIRECT = "shards called directly"
HANDLES = "Ray Serve's handles"
PROXY = "through a proxy"
LOCAL = "local tables"
CALLERS = (1, 8)
FIGURES = {"per_s": "requests/s", "p50_ms": "p50", "p99_ms": "p99", "cpu_ms": "CPU of the caller"}
TIMEOUT_S = 30.0
RECOMMENDED = {
    # handles by gRPC, one event loop in each process, buffered logs
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    # HTTP from outside, which is not measured; it drains for 30 s
    "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0",
    "OPENBLAS_NUM_THREADS": "1",
}
"""Environment of all processes: what Ray's documentation recommends for throughput."""


class Shard(Replica):
    """A shard that responds to handles with the code of its gRPC endpoint."""

    async def rows(self, message: bytes) -> bytes:
        """Responds to a RowsRequest."""
        context = RequestContext("rows", "", time.monotonic() + TIMEOUT_S)
        return await ShardServicer(self._worker.dataplane).Rows(message, context)


class Handles:
    """Calls shards by Serve's handles."""

    def __init__(self, total: int) -> None:
        self._loop = asyncio.get_running_loop()
        names = {number: f"shard-{number}" for number in range(1, total + 1)}
        quick = {
            "method_name": "rows",
            "request_serialization": "pickle",
            "response_serialization": "pickle",
        }
        self._handles = {
            number: serve.get_app_handle(name).options(**quick) for number, name in names.items()
        }

    def division(self, key: Key) -> int:
        """Returns the number of shards."""
        return len(self._handles)

    def call_all(
        self, key: Key, calls: Sequence[ShardCall], left_s: float
    ) -> RemoteCall[list[Any]]:
        """Calls `rows` of several shards at once."""

        async def call() -> list[Any]:
            remote = [
                self._handles[call.shard.number].remote(call.request.SerializeToString())
                for call in calls
            ]
            async with asyncio.timeout(left_s):
                responses = await asyncio.gather(*remote)
            return [
                call.read(shard_pb.RowsResponse.FromString(response))
                for call, response in zip(calls, responses, strict=True)
            ]

        submit = partial(asyncio.run_coroutine_threadsafe, loop=self._loop)
        return RemoteCall(submit, call)


class LocalTables:
    """Reads rows of mapped tables of one layout."""

    def __init__(self, directory: Path) -> None:
        tables = read_manifest(directory).tables
        self._tables = [TableReader(directory, table) for table in tables.values()]
        self._firsts = [table.first for table in remote_tables(tables).values()]

    async def rows(self, wanted: Wanted, left_s: float) -> dict[str, FetchedRows]:
        """See RemoteParts."""
        ((layout, rows),) = wanted.items()
        parts = zip(
            self._tables,
            self._firsts,
            np.split(rows, rows.searchsorted(self._firsts[1:])),
            strict=True,
        )
        return {
            layout: FetchedRows(
                rows,
                np.concatenate(
                    [table.take(positions - first) for table, first, positions in parts]
                ),
            )
        }


async def connect(
    path: str, directory: Path, addresses: Sequence[str]
) -> LocalTables | RemoteVersion:
    """Returns a path to the rows of a bundle; the addresses are those of all shards, or
    of a proxy.
    """
    if path == LOCAL:
        return LocalTables(directory)
    manifest = read_manifest(directory)
    fingerprint = crc32c(dump(manifest))
    root = directory.parents[1]
    settings = read_settings(
        {"root": root, "shard_addresses": tuple(addresses), "shard_min_bytes": 1}
    )
    if path == HANDLES:
        key = (manifest.model, manifest.version, fingerprint)
        total = len(addresses)
        return RemoteVersion(Handles(total), manifest, key, total, settings)
    shards = Shards(settings, Metrics())
    await shards.start()
    return shards.reach(manifest, fingerprint)


class Proxy(ShardServiceServicer):
    """Divides the rows of a call among the shards, calls them, and merges; to its callers it is
    the only shard.
    """

    async def start(self, directory: Path, addresses: Sequence[str]) -> str:
        """Listens; returns its address."""
        remote = await connect(DIRECT, directory, addresses)
        assert isinstance(remote, RemoteVersion)
        self._remote = remote
        self._server = grpc.aio.server()
        add_ShardServiceServicer_to_server(self, self._server)
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return f"127.0.0.1:{port}"

    # names of the contract
    async def Describe(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Describes the whole bundle as one shard."""
        model, version, fingerprint = self._remote.key
        bundle = shard_pb.Bundle(
            model=model, version=version, fingerprint=fingerprint, number=1, total=1
        )
        limits = {name: ServiceSettings.model_fields[name].default for name in MESSAGE_LIMITS}
        return shard_pb.DescribeResponse(number=1, total=1, min_bytes=1, bundles=[bundle], **limits)

    async def Rows(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Returns rows of all shards."""
        return await asyncio.to_thread(self._merged, request, context.time_remaining())

    def _merged(self, request: Any, left_s: float) -> Any:
        (part,) = request.rows
        tables = [self._remote.tables[name] for name in part.tables]
        firsts = np.repeat([table.first for table in tables], np.frombuffer(part.counts, "<u4"))
        rows = firsts + np.frombuffer(part.positions, "<u4")
        wanted = {tables[0].among.name: rows}
        (response_rows,) = completed(self._remote.rows(wanted, left_s)).values()
        return shard_pb.RowsResponse(
            rows=[shard_pb.StoredRows(values=response_rows.take(rows).tobytes())]
        )


class Caller:
    """A process that fetches rows by one path, each caller in a thread of it."""

    def __init__(
        self, path: str, directory: Path, addresses: Sequence[str], requests: Sequence[Wanted]
    ) -> None:
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
        self._path = asyncio.run_coroutine_threadsafe(
            connect(path, directory, addresses), loop
        ).result(TIMEOUT_S)
        self._requests = requests

    def checksums(self) -> list[int]:
        """Returns a checksum of the vectors of each request."""
        results = [
            (wanted, completed(self._path.rows(wanted, TIMEOUT_S))) for wanted in self._requests
        ]
        return [
            crc32c(fetched[layout].take(wanted[layout]))
            for wanted, fetched in results
            for layout in wanted
        ]

    def measure(self, callers: int, seconds: float) -> Block:
        """Has each caller fetch one request after the other."""
        numbers = itertools.count()
        end = time.perf_counter() + seconds

        def fetch_until_end(_: int) -> list[float]:
            seen = list[float]()
            while (began := time.perf_counter()) < end:
                wanted = self._requests[next(numbers) % len(self._requests)]
                completed(self._path.rows(wanted, TIMEOUT_S))
                seen.append(time.perf_counter() - began)
            return seen

        cpu_s = time.process_time()
        began = time.perf_counter()
        with ThreadPoolExecutor(callers) as threads:
            seen_ms = np.concatenate([*threads.map(fetch_until_end, range(callers))]) * 1e3
        elapsed_s = time.perf_counter() - began
        cpu_s = time.process_time() - cpu_s
        p50_ms, p99_ms = np.percentile(seen_ms, [50, 99]).tolist()
        return Block(seen_ms.size / elapsed_s, p50_ms, p99_ms, cpu_s / seen_ms.size * 1e3, 0.0, 0.0)


@contextmanager
def shards_on_ray(root: Path, total: int) -> Iterator[list[str]]:
    """Runs shards, each a deployment of one replica; yields their addresses."""
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    with closing(ServeCluster(total)) as cluster:
        environment = {"env_vars": RECOMMENDED}
        ray.init(
            cluster.address,
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env=environment,
        )
        try:
            serve.start(proxy_location="Disabled")
            shard = serve.deployment(Shard, user_config={}, max_ongoing_requests=256)
            ports = [free_port() for _ in range(total)]
            for number, port in enumerate(ports, 1):
                options = {"shard": f"{number}/{total}", "http_port": 0, "grpc_port": port}
                application = shard.bind({"root": str(root), "shard_min_bytes": 1, **options})
                serve.run(application, name=f"shard-{number}", route_prefix=None)
            yield [f"127.0.0.1:{port}" for port in ports]
        finally:
            ray.shutdown()


def requests_of(work: RankingWorkload) -> list[Wanted]:
    """Returns the distinct rows of each request; the tables of R have one layout."""
    ids = {**work.context, **work.candidates}
    tables = remote_tables(read_manifest(work.directory).tables)
    (layout,) = {table.among.name for table in tables.values()}
    rows = [
        [np.unique(ids[name][number]) + table.first for name, table in tables.items()]
        for number in range(len(work.numbers))
    ]
    return [{layout: np.concatenate(parts)} for parts in rows]


def compare(work: RankingWorkload, total: int, rounds: int, seconds: float) -> Sheet:
    """Measures all in turns; returns figures by those of shards called directly."""
    requests = requests_of(work)
    measured = Rounds(seconds)
    with shards_on_ray(work.directory.parents[1], total) as shards:
        proxy = ray.remote(num_cpus=0)(Proxy).remote()
        caller = ray.remote(num_cpus=0)(Caller)
        of_proxy = [ray.get(proxy.start.remote(work.directory, shards))]
        addresses = {DIRECT: shards, HANDLES: shards, PROXY: of_proxy, LOCAL: shards}
        contestants = {
            path: caller.remote(path, work.directory, addresses_of_path, requests)
            for path, addresses_of_path in addresses.items()
        }
        checksums = [ray.get(contestant.checksums.remote()) for contestant in contestants.values()]
        assert all(checksum == checksums[0] for checksum in checksums), (
            "the paths lead to different rows"
        )
        for number, callers in itertools.product(range(rounds), CALLERS):
            for path in contestants if number % 2 else reversed(contestants):
                measured.add(
                    path, callers, ray.get(contestants[path].measure.remote(callers, seconds))
                )
    rows = [
        (
            path,
            str(callers),
            *(f"{measured.ratio(path, DIRECT, callers, field):.3g}" for field in FIGURES),
        )
        for path, callers in itertools.product(contestants, CALLERS)
    ]
    title = f"The rows of one request of R from {total} shards, by those of shards called directly"
    return Sheet(title, ["path", "callers", *FIGURES.values()], rows)
