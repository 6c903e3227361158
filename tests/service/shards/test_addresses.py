"""Addresses of shards, as Ray's dashboard lists them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from service.shards import addresses

Answer = Callable[[dict[str, Any]], str]


@pytest.fixture
def dashboard() -> Iterator[Answer]:
    """Returns the source of addresses for what a dashboard of Ray then answers."""
    content = b""

    class Dashboard(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None: ...

    def answer(applications: dict[str, Any]) -> str:
        nonlocal content
        content = json.dumps({"applications": applications}).encode()
        return f"ray:127.0.0.1:{server.server_port}"

    with HTTPServer(("127.0.0.1", 0), Dashboard) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield answer
        server.shutdown()
        thread.join()


def application(args: dict[str, Any], *replicas: dict[str, Any]) -> dict[str, Any]:
    return {"deployed_app_config": {"args": args}, "deployments": {"replicas": {"replicas": replicas}}}


def test_ray_replicas_that_answer_are_listed_whatever_the_controller_does_with_them(dashboard: Answer) -> None:
    states = ("RUNNING", "RECOVERING", "UPDATING", "PENDING_MIGRATION", "STOPPING")
    replicas = [{"state": state, "node_ip": f"10.0.0.{place}"} for place, state in enumerate(states)]
    source = dashboard({
        "shard-1": application({"shard": "1/1", "grpc_port": 9101}, *replicas, {"state": "STARTING"}),
        "fronts": application({"grpc_port": 9090}, {"state": "RUNNING", "node_ip": "10.0.0.9"}),
    })  # fmt: skip
    assert asyncio.run(addresses.resolve(source)) == [f"10.0.0.{place}:9101" for place in range(4)]


def test_ray_without_any_shard_is_no_answer_so_that_fronts_keep_the_addresses_that_they_know(dashboard: Answer) -> None:
    with pytest.raises(OSError, match="lists no replica of a shard"):
        asyncio.run(addresses.resolve(dashboard({})))
