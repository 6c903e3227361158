"""Shards and routers as applications of Ray Serve on this machine. deploy/ray/shards.yaml runs them
on several machines.
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
"""Time in which all applications must run."""


class RayFailed(Exception):
    """Ray Serve did not start all applications; the message is Ray's."""


class RayCluster:
    """The applications that Ray Serve runs.

    Attributes:
      router: The URL of the routers. Replicas on one machine share a port: an address stands for
        all of them.
    """

    def __init__(self, dashboard: str, ports: dict[str, tuple[int, int]], address: str) -> None:
        """Describes a cluster.

        Args:
          dashboard: HOST:PORT of Ray's dashboard.
          ports: The ports for HTTP and gRPC of each application.
          address: The address of this machine.
        """
        self._api = f"http://{dashboard}/api/serve/applications/"
        self._ports = ports
        self._address = address
        self.router = f"http://{address}:{ports['routers'][0]}"

    def deploy(self, configuration: dict[str, Any]) -> None:
        """Sends a configuration, and waits until all of its applications run.

        Raises:
          RayFailed: An application failed, or did not run in time.
        """
        self._send(json.dumps(configuration).encode())
        end = time.monotonic() + START_S
        while True:
            applications = self._applications()
            states = [application["status"] for application in applications.values()]
            # Ray lists an application only some time after the request.
            if applications.keys() == self._ports.keys() and set(states) == {"RUNNING"}:
                return
            for application in applications.values():
                if application["status"] == "DEPLOY_FAILED":
                    raise RayFailed(str(application["message"]))
            if time.monotonic() > end:
                raise RayFailed(f"not all applications run after {START_S} s")
            time.sleep(0.2)

    def processes(self, application: str) -> list[int]:
        """Returns the process ids of an application's running replicas."""
        replicas = self._applications()[application]["deployments"]["replicas"]["replicas"]
        return [int(replica["pid"]) for replica in replicas if replica["state"] == "RUNNING"]

    def topology(self) -> str:
        """Returns a text with the address and the processes of each application."""
        text = ""
        for name, (_, grpc_port) in self._ports.items():
            processes = ", ".join(map(str, self.processes(name)))
            text += f"{name:<8} {self._address}:{grpc_port}  processes {processes}\n"
        return text

    def _applications(self) -> dict[str, Any]:
        applications: dict[str, Any] = json.loads(self._send())["applications"]
        return applications

    def _send(self, body: bytes | None = None) -> bytes:
        headers = {
            "authorization": f"Bearer {os.environ['RAY_AUTH_TOKEN']}",
            "content-type": "application/json",
        }
        method = "GET" if body is None else "PUT"
        request = urllib.request.Request(self._api, body, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as response:
            return bytes(response.read())


@contextmanager
def ray_cluster(root: Path, shards: int, replicas: int, routers: int) -> Iterator[RayCluster]:
    """Runs shards of all tables under a root, and routers, until the `with` ends.

    Raises:
      RayFailed: Ray Serve does not start all applications.
    """
    # Whoever reaches the ports of a Ray cluster can run code in it: nobody without this token does.
    os.environ |= {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    # Two event loops of one process would share the events of grpc.aio.
    os.environ["RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD"] = "0"
    # Ray reads its variables when it is imported.
    import ray

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
        applications = []
        for name, args in parts.items():
            http_port, grpc_port = ports[name]
            deployment = {
                "name": "replicas",
                "num_replicas": routers if name == "routers" else replicas,
                "health_check_period_s": 1,
                "ray_actor_options": {"num_cpus": 1},
            }
            application = {
                "name": name,
                "route_prefix": f"/{name}",
                "import_path": "rowcast.ray_serve:replicas",
                "args": {**shared, **args, "http_port": http_port, "grpc_port": grpc_port},
                "deployments": [deployment],
            }
            applications.append(application)
        cluster = RayCluster(dashboard, ports, address)
        cluster.deploy(
            {
                "http_options": {"host": "127.0.0.1", "port": _free_port()},
                "applications": applications,
            }
        )
        yield cluster
    finally:
        ray.shutdown()
        opened.close()


def _write_tokens(directory: Path) -> tuple[str, str]:
    """Writes the token that routers send, and the tokens that shards accept; returns the paths of
    both files.
    """
    token = secrets.token_hex(32)
    token_file = directory / "token"
    accepted = directory / "tokens"
    token_file.write_text(token)
    accepted.write_text(f"routers {token}\n")
    return str(token_file), str(accepted)


def _free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        return int(listener.getsockname()[1])
