"""The access log: a line for each request, over both transports, off by default."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import grpc
import httpx

from service.grpc_api.servicer import SERVICE
from service.observability import logging
from tests.bundles.small import SmallBundle
from tests.e2e.process import WAIT_S
from tests.units.service.grpc_api.requests import retrieve
from tests.units.service.running import RunningService


def test_access_log_has_a_line_for_each_request_with_what_served_it(
    write: Callable[..., SmallBundle], serve: Callable[..., RunningService], stream: TextIO
) -> None:
    write()
    silent = serve()
    assert httpx.get(f"{silent.http}/v1/models", verify=False).status_code == 200
    service = serve(access_log=True, max_concurrent_requests=1, inline_max_us=0)
    body = {"context": {"user": 1}, "k": 2}
    path = "/v1/models/movies:retrieve"
    with (
        httpx.Client(
            base_url=service.http, headers={"x-request-id": "one"}, verify=False
        ) as client,
        grpc.insecure_channel(service.grpc) as channel,
    ):
        assert client.post(path, json=body).status_code == 200
        assert client.post("/v1/models/movies:rank", json={"secret": 7}).status_code == 400
        assert client.post(f"/v1/models/{'x' * 200}:rank", json={}).status_code == 404
        tower = service.waiting()
        pending = channel.unary_unary(f"/{SERVICE}/Retrieve").future(
            retrieve().SerializeToString(), timeout=WAIT_S
        )
        assert tower.entered.wait(WAIT_S)
        # It is rejected before it is read.
        assert client.post(path, json=body).status_code == 429
        tower.release.set()
        pending.result()

    logging.shutdown()
    logged = map(json.loads, Path(stream.name).read_text().splitlines())
    lines = [line for line in logged if line["event"] == "request"]
    names = ("transport", "call", "code", "version", "model")
    assert [tuple([line.get(name) for name in names]) for line in lines] == [
        ("http", "retrieve", "OK", 1, "movies"),
        ("http", "rank", "INVALID_ARGUMENT", 0, "movies"),
        ("http", "rank", "NOT_FOUND", 0, ""),
        ("http", "retrieve", "OVERLOADED", None, "movies"),
        ("grpc", "retrieve", "OK", 1, "movies"),
    ]
    assert {line["request_id"] for line in lines[:4]} == {"one"}
    assert all(line["ms"] > 0 for line in lines if line["code"] != "OVERLOADED")
    assert "secret" not in json.dumps(lines)
