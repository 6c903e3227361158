"""Routers and shards know each other by certificates, names and tokens."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from tests.bundles.small import SmallBundle
from tests.e2e.process import until
from tests.units.service.running import RunningService
from tests.units.service.security.authorities import Authority

TOKEN = "0123456789abcdef0123"


def test_routers_and_shards_authenticate_by_certificates_names_and_tokens(
    write: Callable[..., SmallBundle], serve: Callable[..., RunningService], tmp_path: Path
) -> None:
    write()
    authority = Authority(tmp_path, "ours")
    signed = authority.sign("shard", by_address=False)
    foreign = Authority(tmp_path, "another").sign("router")
    tokens = tmp_path / "tokens"
    tokens.write_text(f"router {TOKEN}\n")
    token = tmp_path / "token"
    token.write_text(f"{TOKEN[::-1]}\n")
    shard = serve(
        shard="1/1",
        shard_min_bytes=1,
        tls_cert=signed.cert,
        tls_key=signed.key,
        tls_client_ca=authority.file,
        tokens=tokens,
    )
    port = shard.grpc.rpartition(":")[2]
    trusting = {"shard_min_bytes": 1, "shard_ca": authority.file, "shard_token": token}

    by_address = {"shard_addresses": (f"127.0.0.1:{port}",)}
    rejected = serve(**trusting, **by_address, tls_cert=signed.cert, tls_key=signed.key)
    assert "Hostname Verification" in rejected.problem(1)

    by_name = {"shard_addresses": (f"dns:localhost:{port}",)}
    router = serve(**trusting, **by_name, tls_cert=foreign.cert, tls_key=foreign.key)
    assert "no shard can be reached" in router.problem(1)
    # Secrets that are replaced while the router runs are those of its next connection and call.
    for file, by in ((foreign.cert, signed.cert), (foreign.key, signed.key)):
        aside = file.with_suffix(".new")
        shutil.copy(by, aside)
        aside.replace(file)
    until(lambda: "UNAUTHENTICATED" in router.problem(1))
    token.write_text(f"\ufeff{TOKEN}\n")
    until(lambda: router.states() == {1: "available"})
