"""What Ray Serve costs a request: two of its replicas beside two plain processes, and its ingress,
in turns.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from rowcast_client.stubs import embedding_service_pb2 as messages

from benchmarks.load import Endpoint, Load
from benchmarks.report import Sheet
from benchmarks.requests import RETRIEVE as METHOD
from benchmarks.rounds import Rounds, block_of
from benchmarks.services import Checkout, Service
from tests.bundles.small import write_small_bundle
from tests.e2e.process import until
from tests.e2e.ray_cluster import ServeCluster
from tests.e2e.services import RETRIEVE, is_ready

DEPLOYED = Path(__file__).parents[2] / "deploy" / "ray" / "replicas.yaml"
CALLERS = (1, 8)
FIGURES = {"per_s": "requests/s", "p50_ms": "p50", "p99_ms": "p99"}
_YAML: Any = import_module("yaml")
EVENT_LOOPS = {"1": {}, "2, Serve's default": {"RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "1"}}
"""Of a replica; the first is what the shipped configuration sets."""


def deploy(cluster: ServeCluster, root: Path, variables: Mapping[str, str]) -> None:
    """Runs two replicas with the environment that the shipped configuration gives them, changed by
    `variables`.
    """
    (application,) = _YAML.safe_load(DEPLOYED.read_text())["applications"]
    actor: dict[str, Any] = application["deployments"][0]["ray_actor_options"]
    actor["runtime_env"]["env_vars"] |= variables
    cluster.deploy(root, {}, num_replicas=2, ray_actor_options=actor | {"num_cpus": 0.5})
    cluster.wait(2)
    with httpx.Client(base_url=f"http://127.0.0.1:{cluster.ports['ingress']}") as client:
        until(lambda: is_ready(client))


def measure(ports: Mapping[str, int], rounds: int, seconds: float) -> Rounds:
    """Loads in turns what listens at some ports, by name."""
    user = messages.Column(int64s=np.array([3], "<i8").tobytes())
    message = messages.RetrieveRequest(k=2, context={"user": user}).SerializeToString()
    json = b'{"context": {"user": 3}, "k": 2}'
    measured = Rounds(seconds)
    with ExitStack() as opened:
        loads = dict[str, Load]()
        for name, port in ports.items():
            is_http = name.endswith("HTTP")
            endpoint = (
                Endpoint(port, RETRIEVE, "application/json") if is_http else Endpoint(port, METHOD)
            )
            loads[name] = opened.enter_context(
                closing(Load(endpoint, [json if is_http else message]))
            )
        for number, callers in product(range(rounds), CALLERS):
            for name in loads if number % 2 else reversed(loads):
                responses = loads[name].closed(callers, seconds)
                assert responses.failed == 0, f"{name}: {responses.failed} requests failed"
                measured.add(name, callers, block_of(responses, 0.0))
    return measured


def compare(scratch: Path, towers: Path, rounds: int, seconds: float) -> Sheet:
    """Runs both over a small bundle, whose towers are compiled; returns figures by those of plain
    processes.
    """
    root = scratch / "small"
    rows = list[tuple[str, ...]]()
    write_small_bundle(root, towers, "movies", 1)
    plain = Service(Checkout("this"), root, scratch, "f32", "--workers", "2", "--threads", "1")
    with closing(plain), closing(ServeCluster()) as cluster:
        options = {
            "replicas, HTTP": "http",
            "replicas, gRPC": "grpc",
            "Serve's ingress, HTTP": "ingress",
        }
        ports = {name: cluster.ports[port] for name, port in options.items()}
        for loops, variables in EVENT_LOOPS.items():
            deploy(cluster, root, variables)
            measured = measure(
                {"plain, HTTP": plain.http, "plain, gRPC": plain.grpc, **ports}, rounds, seconds
            )
            for name, callers in product(ports, CALLERS):
                base = f"plain, {name.rpartition(' ')[2]}"
                figures = (f"{measured.ratio(name, base, callers, field):.2f}" for field in FIGURES)
                rows.append((name, loops, str(callers), *figures))
    columns = ["contestant", "event loops", "callers", *FIGURES.values()]
    return Sheet(
        "Retrieval from two replicas of Ray Serve, by that from two plain processes", columns, rows
    )
