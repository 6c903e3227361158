"""`python -m benchmarks.soak.scale_on_ray`: what Ray Serve runs on a head and three worker nodes,
which are lost under load.

Replicas, routers, node agents (raylets, and with each all of its node) and the Serve controller are
killed at random moments, at last the head node. Exit code 1: a response differs from that of one
process which has everything, or a request failed although its router was there, and a replica of
each shard.

All nodes are on this machine. They have one address, and replicas of one deployment share a port,
so each replica is an application of its own here. Without Redis a head node does not come back: Ray
would begin another cluster.
"""

from __future__ import annotations

import os
import random
import re
import secrets
import signal
import tempfile
import time
from collections.abc import Iterator, Set
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psutil

from benchmarks.soak.callers import (
    Listener,
    Seen,
    exit_with,
    lasting_port,
    load,
    moments_parser,
    seen_of_one,
)
from benchmarks.soak.publishing import MODEL
from benchmarks.soak.switches import SHOW, kept_towers
from tests.bundles.small import write_small_bundle
from tests.e2e.process import WAIT_S, until
from tests.e2e.ray_cluster import free_port

NODES = ({"a": 3}, {"b": 3}, {"a": 3, "b": 3})
"""Which replicas each worker node takes: those named a, or b, or either, as the spare one."""
KINDS = {"replica": 3, "router": 2, "shard": 1, "node agent": 3, "controller": 2}
"""What is killed, and how often in proportion; shard: both of its replicas."""
HEADLESS_S = 75.0
"""Longer than the minute after which node agents end that do not reach the head, if not configured
otherwise.
"""
SHARDS = [f"shard-{number}-{letter}" for number in (1, 2) for letter in "ab"]


class Running(NamedTuple):
    """Where the one replica of an application is."""

    pid: int
    node: str


class Nodes:
    """The nodes of the cluster. In a process of its own: it forks, which callers over gRPC must
    not.
    """

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster  # reads its variables when it is imported

        head = {"num_cpus": 0, "include_dashboard": True, "dashboard_port": free_port()}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._workers: dict[str, tuple[Any, dict[str, int]]] = {}
        self._before = list[psutil.Process]()
        for resources in NODES:
            self.add(resources)

    def addresses(self) -> tuple[str, str]:
        """Returns the address of all nodes, and that of the dashboard."""
        return self._cluster.head_node.node_ip_address, self._cluster.webui_url

    def add(self, resources: dict[str, int]) -> None:
        """Adds a worker node."""
        self._end_orphans()
        node = self._cluster.add_node(num_cpus=2, resources=resources)
        self._workers[node.node_id] = node, resources

    def remove(self, node_id: str) -> dict[str, int]:
        """Kills the agent of a worker node, and with it all that runs there; returns the resources
        of the node.
        """
        node, resources = self._workers.pop(node_id)
        self._before = psutil.Process().children(recursive=True)
        self._cluster.remove_node(node, allow_graceful=False)
        return resources

    def remove_head(self) -> None:
        """Kills all of the head node: the control store (GCS), the Serve controller and the
        dashboard.
        """
        self._before = psutil.Process().children(recursive=True)
        self._cluster.remove_node(self._cluster.head_node, allow_graceful=False)

    def close(self) -> None:
        """Ends all nodes."""
        self._before += psutil.Process().children(recursive=True)
        self._cluster.shutdown()
        self._end_orphans()

    def _end_orphans(self) -> None:
        """Ends what killed node agents have left behind."""
        for process in self._before:
            with suppress(psutil.NoSuchProcess):
                if process.ppid() == 1:
                    process.kill()


_nodes: list[Nodes] = []


def in_nodes_process(method: str, *arguments: Any) -> Any:
    """Calls a method of the nodes that belong to this process; starts them first."""
    if not _nodes:
        _nodes.append(Nodes())
    return getattr(_nodes[0], method)(*arguments)


class Site:
    """What Serve runs on the nodes, by its REST API."""

    def __init__(self, nodes: Executor, root: Path) -> None:
        self._nodes = nodes
        self._host, self._dashboard = self.nodes("addresses")
        headers = {"authorization": f"Bearer {os.environ['RAY_AUTH_TOKEN']}"}
        self._client = httpx.Client(
            base_url=f"http://{self._dashboard}", headers=headers, timeout=WAIT_S
        )
        self.routers = [
            Listener(f"router-{letter}", lasting_port(), lasting_port()) for letter in "ab"
        ]
        self._deploy(root)

    def nodes(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the nodes."""
        return self._nodes.submit(in_nodes_process, method, *arguments).result()

    def _deploy(self, root: Path) -> None:
        shared: dict[str, Any] = {"root": str(root), "shard_min_bytes": 1, "drain_delay_s": 0}
        token = root.parent / "shard-token"
        tokens = root.parent / "shard-tokens"
        token.write_text(secrets.token_hex(32))
        tokens.write_text(f"routers {token.read_text()}\n")
        parts: dict[str, dict[str, Any]] = {
            name: {
                "shard": f"{name[6]}/2",
                "host": self._host,
                "tokens": str(tokens),
                "http_port": lasting_port(),
                "grpc_port": lasting_port(),
            }
            for name in SHARDS
        }
        for router in self.routers:
            ports = {"http_port": router.http, "grpc_port": router.grpc}
            parts[router.name] = {
                "shard_addresses": [f"ray:{self._dashboard}"],
                "shard_token": str(token),
                "host": "127.0.0.1",
                **ports,
            }
        applications = [
            {
                "name": name,
                "route_prefix": f"/{name}",
                "import_path": "rowcast.ray_serve:replicas",
                "args": shared | args,
                "deployments": [
                    {
                        "name": "replicas",
                        "health_check_period_s": 1,
                        "ray_actor_options": {"num_cpus": 0.3, "resources": {name[-1]: 1}},
                    }
                ],
            }
            for name, args in parts.items()
        ]
        body = {"proxy_location": "Disabled", "applications": applications}
        self._client.put("/api/serve/applications/", json=body).raise_for_status()

    def close(self) -> None:
        """Ends all."""
        self._client.close()
        self.nodes("close")

    def running(self) -> dict[str, Running]:
        """Returns the processes that run, by application, and the controller's."""
        from ray.util import state

        alive = [("class_name", "=", "ServeController"), ("state", "=", "ALIVE")]
        with suppress(httpx.HTTPError, state.exception.RayStateApiException):
            actors = state.list_actors(f"http://{self._dashboard}", filters=alive, detail=True)
            status = self._client.get("/api/serve/applications/").raise_for_status().json()
            return {actor.class_name: Running(actor.pid, "") for actor in actors} | {
                name: Running(replica["pid"], replica["node_id"])
                for name, application in status["applications"].items()
                for deployment in application["deployments"].values()
                for replica in deployment["replicas"]
                if replica["state"] == "RUNNING"
            }
        return {}

    def recovered(self, gone: Set[Running]) -> bool:
        """Returns whether all runs, in other processes than those gone, and routers reach two
        replicas of each shard.
        """
        running = set(self.running().values())
        if len(running) != len(SHARDS) + len(self.routers) + 1 or running & gone:
            return False
        with suppress(httpx.HTTPError):
            for router in self.routers:
                url = f"http://127.0.0.1:{router.http}"
                metrics = httpx.get(f"{url}/metrics", timeout=WAIT_S).text
                replicas = re.findall(
                    r'^rowcast_shard_replicas\{shard="./2"\} (.+)', metrics, re.MULTILINE
                )
                if httpx.get(f"{url}/readyz").status_code != 200 or [
                    float(replica) for replica in replicas
                ] != [2, 2]:
                    return False
            return True
        return False


def disturb(site: Site, seen: Seen, seed: int) -> None:
    """Kills something, and notes how long it took until all was as before."""
    chosen = random.Random(seed)
    time.sleep(chosen.random())
    kind = chosen.choices([*KINDS], [*KINDS.values()])[0]
    before = site.running()
    resources = {}
    lost = {
        "replica": [chosen.choice(SHARDS)],
        "router": [chosen.choice(site.routers).name],
        "shard": chosen.choice([SHARDS[:2], SHARDS[2:]]),
        "controller": ["ServeController"],
    }.get(kind)
    begun = time.monotonic()
    if lost is None:
        node = chosen.choice(sorted({process.node for process in before.values()} - {""}))
        lost = [name for name, process in before.items() if process.node == node]
        resources = site.nodes("remove", node)
    else:
        for name in lost:
            os.kill(before[name].pid, signal.SIGKILL)
    gone = {before[name] for name in lost}
    until(lambda: site.recovered(gone))
    now = time.monotonic()
    lost_pair = any(set(pair) <= set(lost) for pair in (SHARDS[:2], SHARDS[2:]))
    seen.allowed += [(name, begun, now) for name in ([""] if lost_pair else lost)]
    seen.recovered(kind, now - begun)
    if resources:
        site.nodes("add", resources)


@contextmanager
def opened(root: Path) -> Iterator[Site]:
    """Runs all until the `with` ends."""
    # Whoever reaches the ports of a Ray cluster can run code in it: nobody without this token does.
    token = secrets.token_hex(32)
    os.environ |= {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    os.environ |= {
        "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
        "RAY_gcs_rpc_server_reconnect_timeout_s": "3600",
    }
    with ProcessPoolExecutor(1, get_context("spawn")) as nodes:
        site = Site(nodes, root)
        try:
            until(lambda: site.recovered(set()))
            yield site
        finally:
            site.close()


def run(moments: int, seed: int, headless_s: float, towers: Path) -> list[str]:
    """Kills `moments` things, then the head node, without which it calls for `headless_s`; returns
    what is wrong.
    """
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "bundles"
        root.mkdir()
        write_small_bundle(root, towers, MODEL, 1, row_types={"movies": "int8"}, partitions=3)
        seen = seen_of_one(root)
        with opened(root) as site, load(site.routers, seen):
            for moment in range(moments):
                disturb(site, seen, seed + moment)
            site.nodes("remove_head")
            before = seen.counts["responses"]
            time.sleep(headless_s)
            SHOW.print(
                f"{seen.counts['responses'] - before} responses in {headless_s:g} s without the "
                "head node"
            )
    return seen.report()


def main() -> None:
    """Reads the arguments and runs."""
    arguments = moments_parser()
    arguments.add_argument(
        "--headless-s", type=float, default=HEADLESS_S, help="seconds without the head node"
    )
    options = arguments.parse_args()
    exit_with(run(options.moments, options.seed, options.headless_s, kept_towers()))


if __name__ == "__main__":
    main()
