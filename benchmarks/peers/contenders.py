"""The peers: how each is started as its makers advise, called, and read."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from benchmarks.load import Endpoint
from benchmarks.peers.environments import ENVIRONMENTS, Environment
from benchmarks.services import Program
from benchmarks.workload_towers import CANDIDATE, CONTEXT
from benchmarks.workloads import RankingWorkload, RetrievalWorkload

SERVERS = Path(__file__).parent / "servers"
JSON = "application/json"
BINARY = "application/octet-stream"
JSON_BYTES = "Inference-Header-Content-Length"
"""Header of Triton: bytes of JSON before the tensors of a binary body."""
V2_HEADER_BYTES = 512
SCORES_BYTES = 4 * 200
TIMEOUT_S = 20
MODEL = "ranking"

RECALL_MIN = 0.9

Scores = NDArray[np.float32]
Read = Callable[[bytes], NDArray[Any]]
Inputs = dict[str, NDArray[np.float32] | NDArray[np.int64]]


class OtherResults(Exception):
    """A contestant has other results than the model; it is not measured."""


@dataclass(frozen=True)
class Target:
    """What requests are sent to: an endpoint, its requests, and how its responses are read."""

    endpoint: Endpoint
    bodies: list[bytes]
    read: Read

    def call(self, number: int) -> NDArray[Any]:
        """Sends one request and returns its scores, or ids.

        Raises:
          OSError: The endpoint cannot be reached, or responds with an error.
        """
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.endpoint.port}{self.endpoint.path}", self.bodies[number]
        )
        headers = {"content-type": self.endpoint.content_type, **self.endpoint.headers}
        for name, value in headers.items():
            request.add_header(name, value)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as opened:
            return self.read(opened.read())


def check_scores(target: Target, wanted: Sequence[Scores], allowed: float = 1e-5) -> None:
    """Compares the scores of the first requests with the model's.

    Args:
      target: The contestant.
      wanted: [200] float32 for each of the first requests.
      allowed: Absolute difference, beside a relative one of 1e-4.
    Raises:
      OtherResults: They differ by more.
    """
    for number, scores in enumerate(wanted):
        actual = target.call(number)
        if actual.shape != scores.shape or not np.allclose(actual, scores, rtol=1e-4, atol=allowed):
            raise OtherResults(f"other scores for request {number}")


def recall_of(target: Target, exact: NDArray[np.int64]) -> float:
    """Returns the recall of the first queries.

    Args:
      target: The contestant.
      exact: [n, k] the nearest candidates by exact search.
    Raises:
      OtherResults: It is less than 0.9.
    """
    neighbors = [target.call(number) for number in range(len(exact))]
    hits = [
        np.intersect1d(ids, nearest).size for ids, nearest in zip(neighbors, exact, strict=True)
    ]
    recall = float(np.sum(hits)) / exact.size
    if recall < RECALL_MIN:
        raise OtherResults(f"recall {recall:.3f}; at least {RECALL_MIN} was expected")
    return recall


def read_score(body: bytes) -> Scores:
    """Reads a response `{"score": [...]}`."""
    return np.array(orjson.loads(body)["score"], np.float32)


def read_rowcast(body: bytes) -> Scores:
    """Reads a response of rowcast."""
    return np.array(orjson.loads(body)["scores"], np.float32)


def read_ids(body: bytes) -> NDArray[np.int64]:
    """Reads the ids of neighbors in a response of the retrieval service, or of rowcast; older
    versions had an object for each neighbor.
    """
    content = orjson.loads(body)
    if "neighbors" in content:
        return np.array([neighbor["id"] for neighbor in content["neighbors"]])
    return np.array(content["ids"])


def read_list(body: bytes) -> Scores:
    """Reads a response that is a list."""
    return np.array(orjson.loads(body), np.float32)


def read_v2(body: bytes) -> Scores:
    """Reads the one output of a response of the V2 protocol (KServe)."""
    return np.array(orjson.loads(body)["outputs"][0]["data"], np.float32)


def read_binary(body: bytes) -> Scores:
    """Reads the one output of a binary response of Triton: JSON, then the scores of 200
    candidates.
    """
    return np.frombuffer(body, "<f4", offset=len(body) - SCORES_BYTES)


def rankings(work: RankingWorkload) -> list[Inputs]:
    """Returns the requests of R as the whole model takes them."""
    return [inputs_of(work, number) for number in range(len(work.numbers))]


def queries(work: RetrievalWorkload) -> list[Inputs]:
    """Returns the requests of Q."""
    return [
        {"user": np.asarray(user), "history": history}
        for user, history in zip(work.users, work.histories, strict=True)
    ]


def inputs_of(work: RankingWorkload, number: int) -> Inputs:
    """Returns one request as the whole model takes it."""
    return {
        "context_ids": np.array([work.context[name][number] for name in CONTEXT]),
        "numbers": work.numbers[number],
        "candidate_ids": np.stack([work.candidates[name][number] for name in CANDIDATE], axis=1),
    }


def plain_json(inputs: Inputs) -> bytes:
    """Encodes a request as lists by name."""
    return orjson.dumps({name: values.tolist() for name, values in inputs.items()})


_V2_TYPES = {"int64": "INT64", "float32": "FP32"}


def v2_json(inputs: Inputs) -> bytes:
    """Encodes a request of the V2 protocol (KServe)."""
    tensors = [
        {
            "name": name,
            "shape": values.shape,
            "datatype": _V2_TYPES[values.dtype.name],
            "data": values.reshape(-1).tolist(),
        }
        for name, values in inputs.items()
    ]
    return orjson.dumps({"inputs": tensors})


def v2_binary(inputs: Inputs) -> bytes:
    """Encodes a batch of one request for Triton: JSON, padded to `V2_HEADER_BYTES`, then the
    tensors.
    """
    tensors = [
        {
            "name": name,
            "shape": (1, *values.shape),
            "datatype": _V2_TYPES[values.dtype.name],
            "parameters": {"binary_data_size": values.nbytes},
        }
        for name, values in inputs.items()
    ]
    head = orjson.dumps({"inputs": tensors, "parameters": {"binary_data_output": True}})
    return head.ljust(V2_HEADER_BYTES) + b"".join(values.tobytes() for values in inputs.values())


@dataclass(frozen=True)
class Peer:
    """A peer, with its environment.

    Attributes:
      command: Returns the command that starts it, from its environment, three free ports and a
        directory of its own.
      read: Returns what is compared from the body of a response.
      encode: Returns the body of a request.
      headers: Of its requests.
      environment: Variables of its process.
    """

    name: str
    venv: Environment
    command: Callable[[Environment, Sequence[int], Path], list[str]]
    read: Read = read_score
    path: str = "/rank"
    encode: Callable[[Inputs], bytes] = plain_json
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def problem(self) -> str:
        """Why it cannot be measured; empty if it can."""
        return self.venv.problem

    def start(self, model: Path, inputs: Sequence[Inputs], logs: Path) -> tuple[Program, Target]:
        """Starts it and waits for its first response.

        Args:
          model: What it serves: a SavedModel, or a bundle.
          inputs: The requests.
          logs: Directory of its log.
        Raises:
          NotStarted: It did not respond.
        """
        ports = free_ports(3)
        scratch = Path(tempfile.mkdtemp(prefix="rowcast-"))  # short, for the paths of sockets
        endpoint = Endpoint(ports[0], self.path, self.content_type, self.headers)
        target = Target(
            endpoint, [self.encode(request_inputs) for request_inputs in inputs], self.read
        )
        environment = {
            "PEER_MODEL": str(model.resolve()),
            "PEER_CORES": str(len(os.sched_getaffinity(0))),
            "PYTHONPATH": str(SERVERS),
            "PYTHONDONTWRITEBYTECODE": "1",
            "XDG_CACHE_HOME": str(scratch),
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "CUDA_VISIBLE_DEVICES": "",
            "PATH": f"{self.venv.directory}/bin:{os.environ['PATH']}",
        }

        def ready() -> bool:
            try:
                return len(target.call(0)) > 0
            except (OSError, urllib.error.URLError):
                return False

        log = logs / f"{self.name.replace(' ', '-')}.log"
        command = self.command(self.venv, ports, scratch)
        return Program(command, ready, log, environment | dict(self.environment)), target


def free_ports(count: int) -> list[int]:
    """Returns ports of loopback that nobody has now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(listener.getsockname()[1]) for listener in sockets]
    for each in sockets:
        each.close()
    return ports


def fastapi(
    venv: Environment, ports: Sequence[int], _scratch: Path, app: str = "fastapi_app"
) -> list[str]:
    """Uvicorn with its defaults: one process, requests in a pool of threads."""
    uvicorn = ["-m", "uvicorn", f"{app}:app", "--port", str(ports[0]), "--no-access-log"]
    return [venv.program("python"), *uvicorn]


def fastapi_processes(
    venv: Environment, ports: Sequence[int], scratch: Path, app: str = "fastapi_app"
) -> list[str]:
    """Uvicorn with a process for each core, each with its copy of the tables."""
    return [*fastapi(venv, ports, scratch, app), "--workers", str(len(os.sched_getaffinity(0)))]


def triton(
    venv: Environment, ports: Sequence[int], _scratch: Path, queue_delay_us: int
) -> list[str]:
    """Triton with its dynamic batcher, and a thread of Python for each core."""
    program = str(SERVERS / "triton_server.py")
    return [venv.program("python"), program, *map(str, ports), str(queue_delay_us)]


def bentoml(venv: Environment, ports: Sequence[int], _scratch: Path) -> list[str]:
    """One worker with two threads over one copy of the tables."""
    serve = ["serve", "bentoml_service:Ranker", "--port", str(ports[0]), "--host", "127.0.0.1"]
    return [venv.program("bentoml"), *serve]


def mlserver(venv: Environment, ports: Sequence[int], scratch: Path) -> list[str]:
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
    (scratch / MODEL).mkdir(exist_ok=True)
    (scratch / "settings.json").write_text(json.dumps(settings))
    model = {"name": MODEL, "implementation": "mlserver_runtime.Ranker"}
    (scratch / MODEL / "model-settings.json").write_text(json.dumps(model))
    return [venv.program("mlserver"), "start", str(scratch)]


def ray(venv: Environment, ports: Sequence[int], scratch: Path) -> list[str]:
    """Two replicas, each with its copy, behind HAProxy, which Ray's documentation advises for
    throughput.
    """
    return [venv.program("python"), str(SERVERS / "ray_serve_app.py"), str(ports[0]), str(scratch)]


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
    *(
        Peer(
            f"Triton, binary, queue delay {queue_delay_us} us",
            ENVIRONMENTS["triton"],
            partial(triton, queue_delay_us=queue_delay_us),
            read_binary,
            _V2,
            v2_binary,
            BINARY,
            {JSON_BYTES: str(V2_HEADER_BYTES)},
        )
        for queue_delay_us in (0, 1000)
    ),
)
"""On workload R."""
_RETRIEVAL = "retrieval_app"

RETRIEVAL_PEERS: tuple[Peer, ...] = (
    Peer("FastAPI + ScaNN", _FASTAPI, partial(fastapi, app=_RETRIEVAL), read_ids, "/retrieve"),
    Peer(
        "FastAPI + ScaNN, processes",
        _FASTAPI,
        partial(fastapi_processes, app=_RETRIEVAL),
        read_ids,
        "/retrieve",
        environment={"PEER_CORES": "1"},
    ),
)
"""On workload Q."""
