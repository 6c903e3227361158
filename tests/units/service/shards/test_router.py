"""What a router knows of its shards: after a cut, while they are busy or fail, beside a source of
addresses that hangs, and with a proxy in the environment.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from bundle.format.checksums import crc32c
from bundle.format.paths import MANIFEST
from service.codec.stubs import shard_service_pb2 as shard_pb
from service.engine.computation import RemoteCall
from service.errors import NotReady
from service.shards import replica as replica_module
from service.shards.router import Shards
from tests.bundles.small import SmallBundle
from tests.e2e.process import WAIT_S
from tests.e2e.valve import Valve
from tests.units.service.shards.cluster import Cluster
from tests.units.service.shards.fixed_shards import (
    CALL,
    KEY,
    FixedShard,
    listening,
    routing,
    well,
)

pytestmark = pytest.mark.slow


async def fail(context: grpc.aio.ServicerContext) -> None:
    await context.abort(grpc.StatusCode.INTERNAL, "why")


async def until(what: Callable[[], object]) -> None:
    end = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


def test_shard_is_called_again_by_a_new_connection_after_a_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # gRPC itself never gives a connection up.
    monkeypatch.setattr(replica_module, "_PING_MS", 2000 * WAIT_S)

    async def cut_and_repair(valve: Valve, router: Shards) -> None:
        await router.call(KEY, CALL, WAIT_S)
        (replica,) = router.replicas.values()
        # Nothing passes, and no end of a connection notices.
        valve.stop_at(sent=1)
        before = valve.connections
        await until(lambda: replica.problem)
        with pytest.raises(NotReady):
            await router.call(KEY, CALL, WAIT_S)
        await until(lambda: valve.connections > before)
        valve.open()
        await until(lambda: not replica.problem)
        await router.call(KEY, CALL, WAIT_S)

    async def run() -> None:
        async with listening(FixedShard(well, {})) as (address,):
            with Valve(int(address.rpartition(":")[2])) as valve:
                valve.open()
                async with routing(tmp_path, valve.url.removeprefix("http://")) as router:
                    await cut_and_repair(valve, router)

    asyncio.run(run())


def test_busy_shard_that_responds_to_calls_is_called_though_polls_time_out(tmp_path: Path) -> None:
    async def poll() -> None:
        shard = FixedShard(well, {})
        async with listening(shard) as (address,), routing(tmp_path, address) as router:
            (replica,) = router.replicas.values()
            shard.may_describe.clear()
            polls = shard.polls
            while shard.polls < polls + 2:  # the second follows the failure of the first
                await router.call(KEY, CALL, WAIT_S)
                await asyncio.sleep(0.1)
            assert not replica.problem
            await until(lambda: replica.problem)

    asyncio.run(poll())


def test_version_whose_load_fails_for_a_reason_of_a_shard_is_loaded_again(
    write: Callable[..., SmallBundle], cluster: Cluster
) -> None:
    small = write(partitions=2)
    fingerprint = crc32c((small.directory / MANIFEST).read_bytes())
    failing = FixedShard(fail, {}, ("movies", 1, fingerprint))

    async def load() -> None:
        async with listening(failing) as (address,):
            router = await asyncio.to_thread(cluster.start_router, shard_addresses=(address,))
            assert router.states() == {1: "failed"}
            assert "a synthetic request failed: shard 1/1 failed with INTERNAL" in router.problem(1)
            calls = failing.calls
            await until(lambda: failing.calls > calls)

    asyncio.run(load())


def test_thread_that_calls_shards_while_the_router_ends_gets_an_error(tmp_path: Path) -> None:
    """As one that loads a version, which nobody waits for."""

    async def stop() -> RemoteCall[list[Any]]:
        async with routing(tmp_path, f"file:{tmp_path / 'none'}") as router:
            return router.call_all(KEY, [CALL], WAIT_S)

    call = asyncio.run(stop())
    with pytest.raises(NotReady, match="shutting down"):
        call.wait()


ROWS: dict[str, list[shard_pb.StoredRows]] = {
    "rows of 0 layouts": [],
    "returned 0 bytes": [shard_pb.StoredRows()],
    "returned 31 bytes": [shard_pb.StoredRows(values=bytes(31))],
    "32 bytes of values and 4 of scales": [shard_pb.StoredRows(values=bytes(32), scales=bytes(4))],
}
"""Rows of other sizes than any that are requested, by what the router says of them."""


def test_version_whose_shard_contradicts_its_sizes_is_not_served(
    write: Callable[..., SmallBundle], cluster: Cluster
) -> None:
    small = write(partitions=2)
    fingerprint = crc32c((small.directory / MANIFEST).read_bytes())

    async def load(words: str) -> None:
        async def contradict(context: grpc.aio.ServicerContext) -> shard_pb.RowsResponse:
            return shard_pb.RowsResponse(rows=ROWS[words])

        shard = FixedShard(contradict, {}, ("movies", 1, fingerprint))
        async with listening(shard) as (address,):
            router = await asyncio.to_thread(cluster.start_router, shard_addresses=(address,))
            assert router.states() == {1: "failed"}
            assert words in router.problem(1)

    for words in ROWS:
        asyncio.run(load(words))


def test_source_of_addresses_that_hangs_delays_no_other(tmp_path: Path) -> None:
    hanging = tmp_path / "addresses"
    os.mkfifo(hanging)  # whoever reads it waits for a writer

    async def poll() -> None:
        shard = FixedShard(well, {})
        async with listening(shard) as (address,):
            try:
                async with routing(tmp_path, f"file:{hanging}", address) as router:
                    await router.call(KEY, CALL, WAIT_S)
                    polls = shard.polls
                    await until(lambda: shard.polls > polls + 1)
            finally:
                os.close(os.open(hanging, os.O_WRONLY))

    asyncio.run(poll())


def test_addresses_that_cannot_be_used_are_named_and_block_no_other(tmp_path: Path) -> None:
    unusable = ["no port", "http://x", "ipv4:999", "[::", "127.0.0.1:0"]
    file = tmp_path / "addresses"

    async def call() -> dict[str, str]:
        async with listening(FixedShard(well, {})) as (address,):
            file.write_text("\n".join([*unusable, address]))
            async with routing(tmp_path, f"file:{file}", f"file:{tmp_path / 'none'}") as router:
                await router.call(KEY, CALL, WAIT_S)
                return {entry["address"]: entry["problem"] for entry in router.status()}

    problems = asyncio.run(call())
    assert all(problems[address] for address in unusable)
    assert "No such file" in problems[f"file:{tmp_path / 'none'}"]


def test_shards_are_reached_directly_whatever_proxy_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("grpc_proxy", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_grpc_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)

    async def call() -> None:
        async with (
            listening(FixedShard(well, {})) as (address,),
            routing(tmp_path, address) as router,
        ):
            await router.call(KEY, CALL, WAIT_S)

    asyncio.run(call())
