"""The peers on workload R: how each is started as its makers advise, asked, and read."""

from __future__ import annotations

import json
import os
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
import orjson
from numpy.typing import NDArray

from tests.bench.load import Door, Load
from tests.bench.peers import v2
from tests.bench.peers.environments import ENVIRONMENTS, Environment
from tests.bench.rounds import Contestant
from tests.bench.services import Program
from tests.bench.workload_towers import CANDIDATE, CONTEXT
from tests.bench.workloads import RankingWorkload

SERVERS = Path(__file__).parent / "servers"
JSON = "application/json"
ASK_WITHIN_S = 20
MODEL = "ranking"

Scores = NDArray[np.float32]


class OtherScores(Exception):
    """A peer answers other scores than the model has; it is not measured."""


@dataclass(frozen=True)
class Way:
    """One way to ask a peer: its door, its requests, and how its answers are read."""

    name: str
    door: Door
    bodies: list[bytes]
    scores: Callable[[bytes], Scores]

    def ask(self, at: int) -> Scores:
        """Sends one request and returns its scores.

        Raises:
          OSError: it cannot be reached.
          grpc.RpcError: it refuses.
        """
        if not self.door.content_type:
            with grpc.insecure_channel(f"127.0.0.1:{self.door.port}") as channel:
                answer: bytes = channel.unary_unary(self.door.path)(self.bodies[at], timeout=ASK_WITHIN_S)
            return self.scores(answer)
        request = urllib.request.Request(f"http://127.0.0.1:{self.door.port}{self.door.path}", self.bodies[at])
        request.add_header("content-type", self.door.content_type)
        with urllib.request.urlopen(request, timeout=ASK_WITHIN_S) as opened:
            return self.scores(opened.read())


@dataclass(frozen=True)
class Peer:
    """A peer, with its environment.

    Attributes:
      venv: where it is installed.
      command: what starts it there, from its ports and a directory of its own.
      ways: how it is asked at its ports.
      environment: variables beside those that all have.
    """

    name: str
    venv: Environment
    command: Callable[[Environment, Sequence[int], Path], list[str]]
    ways: Callable[[Sequence[int], RankingWorkload], list[Way]]
    environment: Mapping[str, str]

    @property
    def problem(self) -> str:
        """Why it cannot be measured; empty if it can."""
        return self.venv.problem

    def start(self, model: Path, work: RankingWorkload, logs: Path, short: Path) -> tuple[Program, list[Way]]:
        """Starts it and waits for its first answer.

        Args:
          model: the whole SavedModel.
          work: the requests.
          logs: where its log goes.
          short: where its other files go: a path that leaves room for those of sockets.
        Raises:
          NotStarted: it did not answer.
        """
        ports = free_ports(3)
        place = short / f"{self.venv.name}-{ports[0]}"
        place.mkdir()
        ways = self.ways(ports, work)
        common = {
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
                return all(len(way.ask(0)) for way in ways)
            except (OSError, urllib.error.URLError, grpc.RpcError):
                return False

        command = self.command(self.venv, ports, place)
        return Program(
            command, ready, logs / f"{self.name.replace(' ', '-')}.log", common | dict(self.environment)
        ), ways


def free_ports(count: int) -> list[int]:
    """Returns ports of loopback that nobody has now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


def check_scores(way: Way, wanted: Sequence[Scores]) -> None:
    """Holds a peer's scores of the first requests against the model's.

    Raises:
      OtherScores: they differ by more than rounding.
    """
    for at, scores in enumerate(wanted):
        found = way.ask(at)
        if found.shape != scores.shape or not np.allclose(found, scores, rtol=1e-4, atol=1e-5):
            raise OtherScores(f"{way.name}: other scores for request {at}")


def contestants(name: str, program: Program, ways: Sequence[Way]) -> list[Contestant]:
    """Returns a running peer's contestants, by way to ask."""
    return [Contestant(f"{name} {way.name}".strip(), program, Load(way.door, way.bodies)) for way in ways]


def tensors(work: RankingWorkload, at: int) -> dict[str, NDArray[np.float32] | NDArray[np.int64]]:
    """Returns one request as the whole model takes it."""
    return {
        "context_ids": np.array([work.context[name][at] for name in CONTEXT]),
        "numbers": work.numbers[at],
        "candidate_ids": np.stack([work.candidates[name][at] for name in CANDIDATE], axis=1),
    }


def json_ways(path: str, read: Callable[[bytes], Scores]) -> Callable[[Sequence[int], RankingWorkload], list[Way]]:
    """Returns how a peer is asked by JSON at a path, its answers read by `read`."""

    def ways(ports: Sequence[int], work: RankingWorkload) -> list[Way]:
        bodies = [
            orjson.dumps({name: each.tolist() for name, each in tensors(work, at).items()})
            for at in range(len(work.numbers))
        ]
        return [Way("", Door(ports[0], path, JSON), bodies, read)]

    return ways


def v2_ways(ports: Sequence[int], work: RankingWorkload) -> list[Way]:
    """Returns how a peer of the V2 protocol is asked, by HTTP at its first port and gRPC at its second."""
    asked = [tensors(work, at) for at in range(len(work.numbers))]
    return [
        Way(
            "HTTP",
            Door(ports[0], f"/v2/models/{MODEL}/infer", JSON),
            [v2.json_body(each) for each in asked],
            v2.json_scores,
        ),
        Way("gRPC", Door(ports[1], v2.METHOD), [v2.message_body(MODEL, each) for each in asked], v2.message_scores),
    ]


def scores_of_rowcast(body: bytes) -> Scores:
    """Decodes rowcast's answer in JSON."""
    return np.array(orjson.loads(body)["scores"], np.float32)


def score(body: bytes) -> Scores:
    """Decodes an answer `{"score": [...]}`."""
    return np.array(orjson.loads(body)["score"], np.float32)


def bare_list(body: bytes) -> Scores:
    """Decodes an answer that is a list."""
    return np.array(orjson.loads(body), np.float32)


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


def litserve(venv: Environment, ports: Sequence[int], _place: Path) -> list[str]:
    """Two workers, each with its copy."""
    return [venv.program("python"), str(SERVERS / "litserve_server.py"), str(ports[0])]


def mlserver(venv: Environment, ports: Sequence[int], place: Path) -> list[str]:
    """Two parallel workers, after its settings are written."""
    http, grpc_port, metrics = ports
    settings = {
        "host": "127.0.0.1",
        "http_port": http,
        "grpc_port": grpc_port,
        "metrics_port": metrics,
        "parallel_workers": len(os.sched_getaffinity(0)),
        "debug": False,
    }
    (place / MODEL).mkdir(exist_ok=True)
    (place / "settings.json").write_text(json.dumps(settings))
    model = {"name": MODEL, "implementation": "mlserver_runtime.Ranker"}
    (place / MODEL / "model-settings.json").write_text(json.dumps(model))
    return [venv.program("mlserver"), "start", str(place)]


def pytriton(venv: Environment, ports: Sequence[int], _place: Path) -> list[str]:
    """Two callables of Triton over one copy."""
    program = str(SERVERS / "pytriton_server.py")
    return [venv.program("python"), program, *map(str, ports)]


def ray(venv: Environment, ports: Sequence[int], place: Path) -> list[str]:
    """Two replicas, each with its copy."""
    program = str(SERVERS / "ray_serve_app.py")
    return [venv.program("python"), program, str(ports[0]), str(place)]


ONE_CORE = {"PEER_CORES": "1"}
_RAY_QUIET = {"RAY_USAGE_STATS_ENABLED": "0"}
_RAY_FAST = {"RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"}

GROUPS: tuple[tuple[Peer, ...], ...] = (
    (
        Peer("FastAPI", ENVIRONMENTS["fastapi"], fastapi, json_ways("/rank", score), {}),
        Peer(
            "BentoML", ENVIRONMENTS["bentoml"], bentoml, json_ways("/rank", bare_list), {"BENTOML_DO_NOT_TRACK": "true"}
        ),
        Peer("LitServe", ENVIRONMENTS["litserve"], litserve, json_ways("/rank", score), {}),
    ),
    (
        Peer("FastAPI, processes", ENVIRONMENTS["fastapi"], fastapi_processes, json_ways("/rank", score), ONE_CORE),
        Peer("MLServer", ENVIRONMENTS["mlserver"], mlserver, v2_ways, {}),
        Peer("pytriton", ENVIRONMENTS["pytriton"], pytriton, v2_ways, {}),
    ),
    (Peer("Ray Serve", ENVIRONMENTS["ray"], ray, json_ways("/rank", score), _RAY_QUIET),),
    (Peer("Ray Serve HAProxy", ENVIRONMENTS["ray"], ray, json_ways("/rank", score), _RAY_QUIET | _RAY_FAST),),
)
"""Those that run at one time: each holds the tables, some twice, and a small machine does not hold them all."""
