"""Addresses of shards, as Ray's dashboard and a file list them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from service.config import SettingsError
from service.shards import addresses


@contextmanager
def dashboard(content: Any) -> Iterator[str]:
    """Responds to every request as Ray's dashboard does; yields its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(content).encode())

        def log_message(self, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def application(args: dict[str, Any], *states: str) -> dict[str, Any]:
    replicas = [
        {"node_ip": f"10.0.0.{number}", "state": state} for number, state in enumerate(states, 1)
    ]
    return {
        "deployed_app_config": {"args": args},
        "deployments": {"replicas": {"replicas": replicas}},
    }


def test_replicas_of_ray_are_shards_that_respond_whatever_the_controller_does() -> None:
    applications = {
        "a": application(
            {"shard": "1/2", "grpc_port": 9001}, "RUNNING", "RECOVERING", "UPDATING", "STARTING"
        ),
        "b": application({"shard": "2/2"}, "PENDING_MIGRATION", "STOPPING"),
        "routers": application({"grpc_port": 9003}, "RUNNING"),
        "other": {"deployed_app_config": None, "deployments": {}},
    }
    expected = ["10.0.0.1:9001", "10.0.0.1:9090", "10.0.0.2:9001", "10.0.0.3:9001"]
    with dashboard({"applications": applications}) as address:
        assert asyncio.run(addresses.resolve(f"ray:{address}")) == expected


def test_ray_is_reached_directly_whatever_proxy_the_environment_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with dashboard({"applications": {"a": application({"shard": "1/1"}, "RUNNING")}}) as address:
        assert asyncio.run(addresses.resolve(f"ray:{address}")) == ["10.0.0.1:9090"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"applications": {}}, "lists no replica of a shard"),
        (["another"], "not a dashboard of Ray"),
    ],
)
def test_dashboard_without_shards_is_an_error_so_that_routers_keep_their_addresses(
    content: Any, words: str
) -> None:
    with dashboard(content) as address, pytest.raises(OSError, match=words):
        asyncio.run(addresses.resolve(f"ray:{address}"))


def test_addresses_of_a_file_are_its_lines(tmp_path: Path) -> None:
    file = tmp_path / "addresses"
    file.write_text("\ufeffone:1\n\n two:2 \n")
    assert asyncio.run(addresses.resolve(f"file:{file}")) == ["one:1", "two:2"]


@pytest.mark.parametrize("source", ["host", "host:0", "host:65536", "dns:name", "ray:", "file:"])
def test_addresses_of_another_source_are_rejected(source: str) -> None:
    with pytest.raises(SettingsError, match="HOST:PORT"):
        addresses.check(source)
