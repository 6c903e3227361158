"""`rowcast-serve` with TLS and tokens as a process: what it refuses at start, and what it follows while it runs."""

from __future__ import annotations

import signal
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import grpc
import httpx
import pytest

from service.rpc.servicer import SERVICE
from tests.service.process import PATIENCE_S, PROGRAM, Process, until
from tests.service.security.authorities import Authority
from tests.service.small_bundle import SmallBundle

OLD, NEW = "old-0123456789abcdef", "new-0123456789abcdef"


def https(service: Process, authority: Authority, token: str) -> httpx.Client:
    return httpx.Client(
        base_url=f"https://127.0.0.1:{service.ports['http']}",
        verify=ssl.create_default_context(cafile=str(authority.file)),
        headers={"authorization": f"Bearer {token}"},
        timeout=PATIENCE_S,
    )


@pytest.mark.parametrize("workers", ["1", "2"])
def test_service_takes_new_certificates_and_tokens_while_connections_go_on(
    workers: str, write: Callable[..., SmallBundle], serve: Callable[..., Process], tmp_path: Path
) -> None:
    write()
    before, after = Authority(tmp_path, "before"), Authority(tmp_path, "after")
    signed, tokens = before.sign("server"), tmp_path / "tokens"
    tokens.write_text(f"ranker {OLD}\n")
    closed = ("--tls-cert", str(signed.cert), "--tls-key", str(signed.key), "--tokens", str(tokens))
    service = serve(*closed, "--workers", workers)
    service.event("listening")
    with https(service, before, OLD) as kept, https(service, before, "strange-0123456789ab") as stranger:
        until(lambda: kept.get("/readyz").status_code == 200)
        assert kept.get("/v1/models").status_code == 200
        assert stranger.get("/v1/models").status_code == 401
        after.sign("server")
        tokens.write_text(f"ranker {OLD}\nranker {NEW}\n")
        service.process.send_signal(signal.SIGHUP)
        for _ in range(2 * int(workers)):
            assert service.event("secrets_read")["what"] in {"tokens", "certificates"}
        kept.headers["authorization"] = f"Bearer {NEW}"
        assert kept.get("/v1/models").status_code == 200
        with https(service, after, NEW) as renewed:
            assert renewed.get("/v1/models").status_code == 200
        with https(service, before, NEW) as outdated, pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY"):
            outdated.get("/livez")
    assert service.stop() == 0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--tokens", "{}/none"), "/none: No such file"),
        (("--tokens", "{}/bad"), "line 1 of {}/bad is no `name token`"),
        (("--tls-cert", "{}/bad"), "--tls-cert and --tls-key go together"),
        (("--tls-cert", "{}/bad", "--tls-key", "{}/bad"), "are no certificate chain and its key"),
        (("--tls-client-ca", "{}/bad"), "over TLS alone"),
    ],
)
def test_service_with_unusable_secrets_ends_at_once_and_says_which(
    options: tuple[str, ...], told: str, root: Path, tmp_path: Path
) -> None:
    (tmp_path / "bad").write_text("nothing\n")
    given = [part.format(tmp_path) for part in options]
    asked = [*PROGRAM, "--root", str(root), *given]
    ended = subprocess.run(asked, check=False, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 2
    assert told.format(tmp_path) in ended.stderr


def test_service_open_to_other_machines_says_what_it_leaves_open(serve: Callable[..., Process]) -> None:
    service = serve("--host", "0.0.0.0")
    assert len(service.event("doors_open")["problems"]) == 2
    assert service.stop() == 0


def test_service_that_wants_certificates_of_callers_names_them_in_its_log(
    write: Callable[..., SmallBundle], serve: Callable[..., Process], tmp_path: Path
) -> None:
    write()
    ours = Authority(tmp_path, "ours")
    signed, friend = ours.sign("server"), ours.sign("friend")
    service = serve("--tls-cert", str(signed.cert), "--tls-key", str(signed.key), "--tls-client-ca", str(ours.file))
    service.event("version_available")
    trust = ssl.create_default_context(cafile=str(ours.file))
    trust.load_cert_chain(friend.cert, friend.key)
    secrets = [file.read_bytes() for file in (ours.file, friend.key, friend.cert)]
    with httpx.Client(verify=trust, timeout=PATIENCE_S) as client:
        refused = client.post(f"https://127.0.0.1:{service.ports['http']}/v1/models/movies:retrieve", content=b"{")
    assert refused.status_code == 400
    assert service.event("request_failed")["caller"] == "friend"
    with (
        grpc.secure_channel(f"127.0.0.1:{service.ports['grpc']}", grpc.ssl_channel_credentials(*secrets)) as channel,
        pytest.raises(grpc.RpcError),
    ):
        channel.unary_unary(f"/{SERVICE}/Retrieve")(b"\xff", timeout=PATIENCE_S)
    assert service.event("request_failed")["caller"] == "friend"
    assert service.stop() == 0
