"""What Ray Serve costs a request: its replicas beside plain processes, and its ingress, in turns on one machine.

    .venv/bin/python -m tests.bench.scale.control_plane [ROUNDS]

Latencies are of one request after the other, and of eight callers. A ratio is the median of those of all rounds, in
each of which every contestant is measured for a second.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import numpy as np
from rowcast_client.stubs import embedding_service_pb2 as messages

from tests.bench.load import Endpoint, Load
from tests.e2e.process import Process, until
from tests.e2e.ray_cluster import ServeCluster
from tests.e2e.services import RETRIEVE
from tests.service.small_bundle import compiled_towers, write_small_bundle

METHOD = "/rowcast.embedding.v1.EmbeddingService/Retrieve"
DEPLOYED = Path(__file__).parents[3] / "deploy" / "ray" / "replicas.yaml"
SECONDS, CALLERS = 1.0, (1, 8)
_YAML: Any = import_module("yaml")
TWO_LOOPS = {"RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "1"}


def loads(ports: dict[str, int]) -> dict[str, Load]:
    """Returns the load of each protocol on a service."""
    user = messages.Column(int64s=np.array([3], "<i8").tobytes())
    message = messages.RetrieveRequest(k=2, features={"user": user}).SerializeToString()
    json = b'{"features": {"user": 3}, "k": 2}'
    made = {"http": Load(Endpoint(ports["http"], RETRIEVE, "application/json"), [json])}
    if "grpc" in ports:
        made["grpc"] = Load(Endpoint(ports["grpc"], METHOD), [message])
    return made


@contextlib.contextmanager
def plain(root: Path) -> Iterator[dict[str, int]]:
    """Runs `rowcast-serve` with two workers."""
    service = Process(root, "--workers", "2", "--threads", "1")
    try:
        with service.client() as client:
            until(lambda: client.get("/readyz").status_code == 200)
        yield service.ports
    finally:
        service.kill()


def deploy(cluster: ServeCluster, root: Path, variables: dict[str, str]) -> None:
    """Runs two replicas with the environment that the shipped configuration gives them, changed by `variables`."""
    (application,) = _YAML.safe_load(DEPLOYED.read_text())["applications"]
    actor: dict[str, Any] = application["deployments"][0]["ray_actor_options"]
    actor["runtime_env"]["env_vars"] |= variables
    cluster.deploy(root, {}, num_replicas=2, ray_actor_options=actor | {"num_cpus": 0.5})
    cluster.wait(2)
    with httpx.Client(base_url=f"http://127.0.0.1:{cluster.ports['ingress']}") as client:
        until(lambda: client.get("/readyz").status_code == 200)


def compare(title: str, rounds: int, contestants: dict[str, dict[str, Load]]) -> None:
    """Measures contestants in turns, and prints each beside the first."""
    (first, reference), *others = contestants.items()
    for protocol, callers in itertools.product(reference, CALLERS):
        measured: dict[str, list[tuple[float, float]]] = {first: []}
        for name, load in [(first, reference), *others] * rounds:
            if protocol in load:
                answers = load[protocol].closed(callers, SECONDS)
                assert answers.failed == 0, f"{name}: {answers.failed} requests failed"
                measured.setdefault(name, []).append((answers.percentile_ms(50), answers.percentile_ms(99)))
        for name, found in measured.items():
            p50, p99 = (median(each) for each in zip(*found, strict=True))
            ratio = median(own[0] / base[0] for own, base in zip(found, measured[first], strict=True))
            print(f"| {title}{name} | {protocol} | {callers} | {p50:.2f} | {p99:.2f} | {ratio:.2f} |", flush=True)  # noqa: T201


def main() -> None:
    """Prints a table."""
    rounds = int(sys.argv[1]) if sys.argv[1:] else 7
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "root"
        write_small_bundle(root, compiled_towers(Path(scratch) / "towers"), "movies", 1)
        cluster = ServeCluster()
        try:
            with plain(root) as ports:
                print("| | protocol | callers | p50 ms | p99 ms | beside plain |\n|---|---|---|---|---|---|")  # noqa: T201
                for title, variables in (("", {}), ("two loops: ", TWO_LOOPS)):
                    deploy(cluster, root, variables)
                    ingress = {"http": cluster.ports["ingress"]}
                    contestants = {"plain": loads(ports), "replicas": loads(cluster.ports), "ingress": loads(ingress)}
                    compare(title, rounds, contestants)
        finally:
            cluster.close()


if __name__ == "__main__":
    main()
