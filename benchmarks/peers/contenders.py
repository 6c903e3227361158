"""The peers on workload R: how each is started as its makers advise, called, and read."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray

from benchmarks.load import Endpoint
from benchmarks.peers.environments import ENVIRONMENTS, Environment
from benchmarks.services import Program
from benchmarks.workload_towers import CANDIDATE, CONTEXT
from benchmarks.workloads import RankingWorkload

SERVERS = Path(__file__).parent / "servers"
JSON = "application/json"
TIMEOUT_S = 20
MODEL = "ranking"

Scores = NDArray[np.float32]
Read = Callable[[bytes], Scores]
Inputs = dict[str, NDArray[np.float32] | NDArray[np.int64]]


class OtherScores(Exception):
    """A peer answers other scores than the model has; it is not measured."""


@dataclass(frozen=True)
class Way:
    """How a program is called: its endpoint, its requests, and how its answers are read."""

    endpoint: Endpoint
    bodies: list[bytes]
    read: Read

    def call(self, at: int) -> Scores:
        """Sends one request and returns its scores.

        Raises:
          OSError: it cannot be reached, or answers an error.
        """
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.endpoint.port}{self.endpoint.path}", self.bodies[at]
        )
        request.add_header("content-type", self.endpoint.content_type)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as opened:
            return self.read(opened.read())


def check_scores(way: Way, wanted: Sequence[Scores]) -> None:
    """Compares the scores of the first requests with the model's.

    Raises:
      OtherScores: they differ by more than rounding.
    """
    for at, scores in enumerate(wanted):
        found = way.call(at)
        if found.shape != scores.shape or not np.allclose(found, scores, rtol=1e-4, atol=1e-5):
            raise OtherScores(f"other scores for request {at}")


def read_score(body: bytes) -> Scores:
    """Reads an answer `{"score": [...]}`."""
    return np.array(orjson.loads(body)["score"], np.float32)


def read_rowcast(body: bytes) -> Scores:
    """Reads an answer of rowcast."""
    return np.array(orjson.loads(body)["scores"], np.float32)


def read_list(body: bytes) -> Scores:
    """Reads an answer that is a list."""
    return np.array(orjson.loads(body), np.float32)


def read_v2(body: bytes) -> Scores:
    """Reads the one output of an answer of the V2 protocol (KServe)."""
    return np.array(orjson.loads(body)["outputs"][0]["data"], np.float32)


def inputs_of(work: RankingWorkload, at: int) -> Inputs:
    """Returns one request as the whole model takes it."""
    return {
        "context_ids": np.array([work.context[name][at] for name in CONTEXT]),
        "numbers": work.numbers[at],
        "candidate_ids": np.stack([work.candidates[name][at] for name in CANDIDATE], axis=1),
    }


def plain_json(inputs: Inputs) -> bytes:
    """Encodes a request as lists by name."""
    return orjson.dumps({name: each.tolist() for name, each in inputs.items()})


def v2_json(inputs: Inputs) -> bytes:
    """Encodes a request of the V2 protocol (KServe)."""
    types = {"int64": "INT64", "float32": "FP32"}
    tensors = [
        {
            "name": name,
            "shape": each.shape,
            "datatype": types[each.dtype.name],
            "data": each.reshape(-1).tolist(),
        }
        for name, each in inputs.items()
    ]
    return orjson.dumps({"inputs": tensors})


@dataclass(frozen=True)
class Peer:
    """A peer, with its environment.

    Attributes:
      command: what starts it, from its environment, three free ports and a directory of its own.
    """

    name: str
    venv: Environment
    command: Callable[[Environment, Sequence[int], Path], list[str]]
    read: Read = read_score
    path: str = "/rank"
    encode: Callable[[Inputs], bytes] = plain_json
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def problem(self) -> str:
        """Why it cannot be measured; empty if it can."""
        return self.venv.problem

    def start(self, model: Path, work: RankingWorkload, logs: Path) -> tuple[Program, Way]:
        """Starts it and waits for its first answer.

        Raises:
          NotStarted: it did not answer.
        """
        ports = free_ports(3)
        place = Path(tempfile.mkdtemp(prefix="rowcast-"))  # short, for the paths of sockets
        bodies = [self.encode(inputs_of(work, at)) for at in range(len(work.numbers))]
        way = Way(Endpoint(ports[0], self.path, JSON), bodies, self.read)
        environment = {
            "PEER_MODEL": str(model.resolve()),
            "PEER_CORES": str(len(os.sched_getaffinity(0))),
            "PYTHONPATH": str(SERVERS),
            "PYTHONDONTWRITEBYTECODE": "1",
            "XDG_CACHE_HOME": str(place),
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "CUDA_VISIBLE_DEVICES": "",
            "PATH": f"{self.venv.directory}/bin:{os.environ['PATH']}",
        }

        def ready() -> bool:
            try:
                return len(way.call(0)) > 0
            except (OSError, urllib.error.URLError):
                return False

        log = logs / f"{self.name.replace(' ', '-')}.log"
        command = self.command(self.venv, ports, place)
        return Program(command, ready, log, environment | dict(self.environment)), way


def free_ports(count: int) -> list[int]:
    """Returns ports of loopback that nobody has now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


def fastapi(venv: Environment, ports: Sequence[int], _place: Path) -> list[str]:
    """Uvicorn with its defaults: one process, requests in a pool of threads."""
    uvicorn = ["-m", "uvicorn", "fastapi_app:app", "--port", str(ports[0]), "--no-access-log"]
    return [venv.program("python"), *uvicorn]


def fastapi_processes(venv: Environment, ports: Sequence[int], place: Path) -> list[str]:
    """Uvicorn with a process for each core, each with its copy of the tables."""
    return [*fastapi(venv, ports, place), "--workers", str(len(os.sched_getaffinity(0)))]


def bentoml(venv: Environment, ports: Sequence[int], _place: Path) -> list[str]:
    """One worker with two threads over one copy of the tables."""
    serve = ["serve", "bentoml_service:Ranker", "--port", str(ports[0]), "--host", "127.0.0.1"]
    return [venv.program("bentoml"), *serve]


def mlserver(venv: Environment, ports: Sequence[int], place: Path) -> list[str]:
    """Two parallel workers, after its settings are written."""
    http, grpc_port, metrics = ports
    settings: dict[str, object] = {
        "http_port": http,
        "grpc_port": grpc_port,
        "metrics_port": metrics,
    }
    settings |= {
        "host": "127.0.0.1",
        "parallel_workers": len(os.sched_getaffinity(0)),
        "debug": False,
    }
    (place / MODEL).mkdir(exist_ok=True)
    (place / "settings.json").write_text(json.dumps(settings))
    model = {"name": MODEL, "implementation": "mlserver_runtime.Ranker"}
    (place / MODEL / "model-settings.json").write_text(json.dumps(model))
    return [venv.program("mlserver"), "start", str(place)]


def ray(venv: Environment, ports: Sequence[int], place: Path) -> list[str]:
    """Two replicas, each with its copy, behind HAProxy, which Ray's documentation advises for
    throughput.
    """
    return [venv.program("python"), str(SERVERS / "ray_serve_app.py"), str(ports[0]), str(place)]


_RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
}
_RAY |= {"RAY_worker_niceness": "0"}  # by default replicas yield to the load generator
_FASTAPI = ENVIRONMENTS["fastapi"]
_V2 = f"/v2/models/{MODEL}/infer"

PEERS: tuple[Peer, ...] = (
    Peer("FastAPI", _FASTAPI, fastapi),
    Peer("FastAPI, processes", _FASTAPI, fastapi_processes, environment={"PEER_CORES": "1"}),
    Peer(
        "BentoML",
        ENVIRONMENTS["bentoml"],
        bentoml,
        read_list,
        environment={"BENTOML_DO_NOT_TRACK": "true"},
    ),
    Peer("MLServer", ENVIRONMENTS["mlserver"], mlserver, read_v2, _V2, v2_json),
    Peer("Ray Serve, HAProxy", ENVIRONMENTS["ray"], ray, environment=_RAY),
)
