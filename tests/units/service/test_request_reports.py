"""The access log: a line for each request, over both transports, off by default."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import grpc
import httpx
import pytest

from service.grpc_api.servicer import SERVICE
from service.observability import logging
from tests.bundles.small import SmallBundle
from tests.units.service.grpc_api.requests import call, retrieve
from tests.units.service.running import RunningService

Serve = Callable[..., RunningService]


def requests_in(stream: TextIO) -> list[dict[str, Any]]:
    """Returns the lines of the access log, and ends the log."""
    logging.shutdown()
    lines = map(json.loads, Path(stream.name).read_text().splitlines())
    return [line for line in lines if line["event"] == "request"]


@pytest.fixture(autouse=True)
def _bundle(write: Callable[..., SmallBundle]) -> None:
    write()


def test_access_log_has_a_line_for_each_request_with_what_served_it(
    serve: Serve, stream: TextIO
) -> None:
    service = serve(access_log=True)
    with httpx.Client(base_url=service.http, headers={"x-request-id": "one"}) as client:
        body = {"context": {"user": 1}, "k": 2}
        assert client.post("/v1/models/movies:retrieve", json=body).status_code == 200
        assert client.post("/v1/models/movies:rank", json={"secret": 7}).status_code == 400
        assert client.post(f"/v1/models/{'x' * 200}:rank", json={}).status_code == 404
    with grpc.insecure_channel(service.grpc) as channel:
        assert call(channel, "Retrieve", retrieve()).code == "OK"

    lines = requests_in(stream)
    actual = [(line["transport"], line["call"], line["code"], line["version"]) for line in lines]
    assert actual == [
        ("http", "retrieve", "OK", 1),
        ("http", "rank", "INVALID_ARGUMENT", 0),
        ("http", "rank", "NOT_FOUND", 0),
        ("grpc", "retrieve", "OK", 1),
    ]
    models = [line["model"] for line in lines]
    assert models == ["movies", "movies", "", "movies"]
    assert {line["request_id"] for line in lines[:3]} == {"one"}
    assert all(line["ms"] > 0 for line in lines)
    assert "secret" not in json.dumps(lines)


def test_access_log_has_the_requests_that_are_rejected_before_they_are_read(
    serve: Serve, stream: TextIO
) -> None:
    service = serve(access_log=True, max_concurrent_requests=1, inline_max_us=0)
    tower = service.waiting()
    url = f"{service.http}/v1/models/movies:retrieve"
    body = {"context": {"user": 1}, "k": 2}
    with grpc.insecure_channel(service.grpc) as channel:
        pending = channel.unary_unary(f"/{SERVICE}/Retrieve").future(
            retrieve().SerializeToString(), timeout=20
        )
        assert tower.entered.wait(20)
        assert httpx.post(url, json=body, headers={"x-request-id": "late"}).status_code == 429
        tower.release.set()
        pending.result()

    rejected = next(line for line in requests_in(stream) if line["code"] != "OK")
    assert (rejected["code"], rejected["request_id"]) == ("OVERLOADED", "late")


def test_requests_are_not_logged_by_default(serve: Serve, stream: TextIO) -> None:
    service = serve()
    assert httpx.get(f"{service.http}/v1/models").status_code == 200
    assert requests_in(stream) == []
