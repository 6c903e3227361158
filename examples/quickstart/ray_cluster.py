"""Shards and routers as applications of Ray Serve on this machine, as deploy/ray/shards.yaml places
them on several.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

START_S = 180


class RayFailed(Exception):
    """Ray Serve did not start all of it; the message is what it reports."""


class RayCluster:
    """What Ray Serve runs.

    Attributes:
      router: URL of the routers. Replicas on one machine share a port: each address stands for all
        of its processes.
    """

    def __init__(self, dashboard: str, ports: dict[str, tuple[int, int]], address: str) -> None:
        self._api = f"http://{dashboard}/api/serve/applications/"
        self._ports = ports
        self._address = address
        self.router = f"http://{address}:{ports['routers'][0]}"

    def deploy(self, configuration: dict[str, Any]) -> None:
        """Sends a configuration, and waits until all of it runs.

        Raises:
          RayFailed: it does not.
        """
        self._send(json.dumps(configuration).encode())
        end = time.monotonic() + START_S
        while (found := self._applications()).keys() != self._ports.keys() or not all(
            each["status"] == "RUNNING" for each in found.values()
        ):
            failed = [
                str(each["message"]) for each in found.values() if each["status"] == "DEPLOY_FAILED"
            ]
            if failed or time.monotonic() > end:
                raise RayFailed(failed[0] if failed else f"not all runs after {START_S} s")
            time.sleep(0.2)

    def processes(self, application: str) -> list[int]:
        """Returns the process ids of an application's replicas that run."""
        replicas = self._applications()[application]["deployments"]["replicas"]["replicas"]
        return [int(each["pid"]) for each in replicas if each["state"] == "RUNNING"]

    def topology(self) -> str:
        """Returns which address holds what."""
        lines = (
            f"{name:<8} {self._address}:{grpc}  processes "
            f"{', '.join(map(str, self.processes(name)))}"
            for name, (_, grpc) in self._ports.items()
        )
        return "\n".join(lines) + "\n"

    def _applications(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._send())["applications"]
        return found

    def _send(self, body: bytes | None = None) -> bytes:
        headers = {
            "authorization": f"Bearer {os.environ['RAY_AUTH_TOKEN']}",
            "content-type": "application/json",
        }
        request = urllib.request.Request(
            self._api, body, headers, method="GET" if body is None else "PUT"
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return bytes(answer.read())


@contextmanager
def ray_cluster(root: Path, shards: int, replicas: int, routers: int) -> Iterator[RayCluster]:
    """Runs shards of all tables under a root, and routers, until the `with` ends.

    Raises:
      RayFailed: Ray Serve does not start all of it.
    """
    # Whoever reaches the ports of a Ray cluster can run code in it: nobody without this token does.
    os.environ |= {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    os.environ["RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD"] = "0"
    import ray  # reads its variables when it is imported

    context = ray.init(
        "local",
        num_cpus=8,
        include_dashboard=True,
        dashboard_port=_free_port(),
        log_to_driver=False,
    )
    opened = ExitStack()
    try:
        dashboard = str(context.dashboard_url)
        address = str(ray.util.get_node_ip_address())
        token, tokens = _write_tokens(Path(opened.enter_context(TemporaryDirectory())))
        parts: dict[str, dict[str, Any]] = {
            f"shard-{n}": {"shard": f"{n}/{shards}", "tokens": tokens} for n in range(1, shards + 1)
        }
        parts["routers"] = {"shard_addresses": [f"ray:{dashboard}"], "shard_token": token}
        ports = {name: (_free_port(), _free_port()) for name in parts}
        shared = {
            "root": str(root.resolve()),
            "host": address,
            "shard_min_bytes": 1,
            "drain_delay_s": 0,
        }
        cluster = RayCluster(dashboard, ports, address)
        cluster.deploy(
            {
                "http_options": {"host": "127.0.0.1", "port": _free_port()},
                "applications": [
                    {
                        "name": name,
                        "route_prefix": f"/{name}",
                        "import_path": "service.ray_serve:replicas",
                        "args": {
                            **shared,
                            **args,
                            "http_port": ports[name][0],
                            "grpc_port": ports[name][1],
                        },
                        "deployments": [
                            {
                                "name": "replicas",
                                "num_replicas": routers if name == "routers" else replicas,
                                "health_check_period_s": 1,
                                "ray_actor_options": {"num_cpus": 1},
                            }
                        ],
                    }
                    for name, args in parts.items()
                ],
            }
        )
        yield cluster
    finally:
        ray.shutdown()
        opened.close()


def _write_tokens(directory: Path) -> tuple[str, str]:
    """Writes what routers send to shards, and what shards accept; returns the paths of both."""
    token = secrets.token_hex(32)
    sent = directory / "token"
    accepted = directory / "tokens"
    sent.write_text(token)
    accepted.write_text(f"routers {token}\n")
    return str(sent), str(accepted)


def _free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        return int(listener.getsockname()[1])
