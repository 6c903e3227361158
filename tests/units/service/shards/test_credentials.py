"""Certificates and tokens of a router, which are replaced while it runs."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path

import grpc
import pytest

from service.codec.stubs.shard_service_pb2_grpc import add_ShardServiceServicer_to_server
from service.config import ServiceSettings
from service.observability.metrics import Metrics
from service.security import watched_files
from service.shards.credentials import ShardCredentials
from service.shards.router import Shards
from tests.units.service.security.authorities import Authority, Signed
from tests.units.service.shards.fixed_shards import FixedShard

WAIT_S = 30.0


async def not_called(_: object) -> None:
    raise AssertionError("no row is read")


def replace(files: Signed, by: Signed) -> None:
    """Replaces a certificate and its key as a mounted secret is replaced."""
    for target, source in ((files.cert, by.cert), (files.key, by.key)):
        aside = target.with_suffix(".new")
        shutil.copy(source, aside)
        aside.replace(target)


async def until_problem(router: Shards, *, expected: bool) -> None:
    """Waits until the only replica can be called, or cannot."""
    (replica,) = router.replicas.values()
    end = time.monotonic() + WAIT_S
    while bool(replica.problem) is not expected:
        assert time.monotonic() < end, replica.problem
        await asyncio.sleep(0.05)


def test_router_connects_with_the_certificates_that_replaced_its_own(tmp_path: Path) -> None:
    ours = Authority(tmp_path, "ours")
    shard_files = ours.sign("shard")
    first = ours.sign("first")
    foreign = Authority(tmp_path, "another").sign("foreign")
    settings = ServiceSettings(
        root=tmp_path,
        shard_addresses=("127.0.0.1:1",),
        shard_min_bytes=1,
        shard_ca=ours.file,
        tls_cert=foreign.cert,
        tls_key=foreign.key,
    )

    async def run() -> None:
        server = grpc.aio.server()
        add_ShardServiceServicer_to_server(FixedShard(not_called, {}), server)
        credentials = grpc.ssl_server_credentials(
            [(shard_files.key.read_bytes(), shard_files.cert.read_bytes())],
            ours.file.read_bytes(),
            require_client_auth=True,
        )
        port = server.add_secure_port("127.0.0.1:0", credentials)
        await server.start()
        address = f"127.0.0.1:{port}"
        router = Shards(settings.model_copy(update={"shard_addresses": (address,)}), Metrics())
        await router.start()
        try:
            await until_problem(router, expected=True)
            replace(foreign, first)
            await until_problem(router, expected=False)
        finally:
            await router.stop()
            await server.stop(None)

    asyncio.run(run())


def test_token_that_is_replaced_is_sent_with_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched_files, "INTERVAL_S", 0.0)
    token = tmp_path / "token"
    token.write_text("first\n")
    credentials = ShardCredentials(ServiceSettings(root=tmp_path, shard_token=token))
    assert credentials.metadata() == (("authorization", "Bearer first"),)
    token.write_text("second, longer\n")
    assert credentials.metadata() == (("authorization", "Bearer second, longer"),)
