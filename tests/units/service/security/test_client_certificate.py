"""A client certificate names the client of HTTP requests, as of gRPC calls."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tests.units.service.http.clients import RETRIEVE
from tests.units.service.running import RunningService, log_lines
from tests.units.service.security.authorities import Authority, Signed


def client_of(service: RunningService, authority: Authority, signed: Signed) -> httpx.Client:
    context = ssl.create_default_context(cafile=str(authority.file))
    context.load_cert_chain(signed.cert, signed.key)
    return httpx.Client(base_url=service.http, verify=context)


def test_failed_requests_are_logged_with_the_name_in_the_certificate(
    write: Callable[..., Any], serve: Callable[..., RunningService], tmp_path: Path
) -> None:
    write()
    ours = Authority(tmp_path, "ours")
    server = ours.sign("server")
    service = serve(tls_cert=server.cert, tls_key=server.key, tls_client_ca=ours.file)
    with (
        log_lines() as written,
        client_of(service, ours, ours.sign("friend")) as friend,
        client_of(service, ours, ours.sign("other")) as other_client,
    ):
        for client in (
            friend,
            other_client,
            friend,
            other_client,
            other_client,
        ):  # on connections that are kept
            assert client.post(RETRIEVE, json={"kk": 1}).status_code == 400
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    names = [line["principal"] for line in lines if line["event"] == "request_failed"]
    assert names == ["friend", "other", "friend", "other", "other"]
