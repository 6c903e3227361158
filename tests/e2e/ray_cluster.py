"""A Ray cluster of this machine with Serve on it, used as operators do: by configurations sent to
its REST API.
"""

from __future__ import annotations

import json
import os
import socket
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.process import WAIT_S, until

APPLICATION = "rowcast"
DEPLOYMENT = "replicas"


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        return int(listener.getsockname()[1])


class ServeCluster:
    """One node with Serve's ingress on it.

    Attributes:
      address: The address of the cluster.
      ports: The ports of the replicas, `http` and `grpc`, and of the `ingress`.
    """

    def __init__(self, cores: int = 2) -> None:
        # Ray lowers the priority of its workers by default.
        os.environ |= {
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",
        }
        from ray.cluster_utils import Cluster

        self.ports = {name: free_port() for name in ("http", "grpc", "ingress")}
        dashboard = free_port()
        self._nodes = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": cores,
                "object_store_memory": 100 << 20,
                "include_dashboard": True,
                "dashboard_port": dashboard,
            },
        )
        self.address = self._nodes.address
        self._dashboard = f"127.0.0.1:{dashboard}"
        url = f"http://{self._dashboard}/api/serve/applications/"
        self._client = httpx.Client(base_url=url, timeout=WAIT_S, verify=False)

    def deploy(self, root: Path, args: dict[str, Any], **options: Any) -> None:
        """Sends a configuration; `args`: further settings, `options`: of the deployment."""
        deployment = {"name": DEPLOYMENT, "ray_actor_options": {"num_cpus": 0.5}, **options}
        ports = {"http_port": self.ports["http"], "grpc_port": self.ports["grpc"]}
        settings = {
            "root": str(root),
            **ports,
            "poll_interval_s": 0.05,
            "drain_delay_s": 0.2,
            **args,
        }
        application = {
            "name": APPLICATION,
            "route_prefix": "/",
            "import_path": "rowcast.ray_serve:replicas",
            "args": settings,
            "deployments": [deployment],
        }
        self._put([application])

    def _put(self, applications: list[dict[str, Any]]) -> None:
        ingress = {"host": "127.0.0.1", "port": self.ports["ingress"]}
        before = self.application().get("last_deployed_time_s")
        self._client.put(
            "", json={"http_options": ingress, "applications": applications}
        ).raise_for_status()
        until(lambda: self.application().get("last_deployed_time_s") != before)

    def application(self) -> dict[str, Any]:
        """What Serve reports of the application; {}: nothing yet."""
        actual: dict[str, Any] = (
            self._client.get("").raise_for_status().json()["applications"].get(APPLICATION, {})
        )
        return actual

    def deployment(self) -> dict[str, Any]:
        """What Serve reports of the deployment; {}: nothing yet."""
        actual: dict[str, Any] = self.application().get("deployments", {}).get(DEPLOYMENT, {})
        return actual

    def processes(self) -> set[int]:
        """The process ids of the replicas that serve."""
        return {
            each["pid"]
            for each in self.deployment().get("replicas", [])
            if each["state"] == "RUNNING"
        }

    def wait(self, replicas: int) -> set[int]:
        """Waits until Serve is done and has this many replicas; returns their process ids."""

        def done() -> bool:
            application = self.application()
            assert application["status"] != "DEPLOY_FAILED", application
            states = [each["state"] for each in self.deployment().get("replicas", [])]
            return application["status"] == "RUNNING" and states == ["RUNNING"] * replicas

        until(done)
        return self.processes()

    def wait_failed(self) -> str:
        """Waits until a deployment has failed; returns what Serve reports of it."""
        until(lambda: self.application()["status"] == "DEPLOY_FAILED")
        return str(self.application()["message"]) + str(self.deployment().get("message", ""))

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log lines of all replicas that have this event."""
        logs = Path(self._nodes.head_node.get_logs_dir_path()).glob("worker-*.err")
        lines = (
            line for log in logs for line in log.read_text().splitlines() if line.startswith("{")
        )
        return [line for line in map(json.loads, lines) if line["event"] == name]

    def close(self) -> None:
        self._client.close()
        self._nodes.shutdown()
