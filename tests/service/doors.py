"""Both doors of a service on real sockets, in a thread of their own, in front of any engine."""

from __future__ import annotations

import asyncio
import io
import logging
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, cast

import numpy as np

from bundle.features import Column
from service.engine import descriptions, requests
from service.engine.admission import Admission, Permit
from service.engine.desk import Desk
from service.engine.engine import Engine
from service.engine.jobs import Told
from service.errors import Internal, Overloaded, ServiceError
from service.generations.shelf import VersionState
from service.logs import JsonLines
from service.metrics import Metrics
from service.rest.crowd import patience_of
from service.rest.server import HttpServer
from service.rpc.server import RpcServer
from service.security.guards import guards_of
from service.settings import ServiceSettings

Answer = TypeVar("Answer")
HEAD_S_MAX = 1.0
GRACE_S = 0.5


@dataclass(frozen=True)
class GivenUp:
    """What is left of a call that was begun: that its caller may leave."""

    answering: asyncio.Task[None]

    def give_up(self) -> None:
        self.answering.cancel()


class ScriptedEngine:
    """Answers every call alike, or fails as it is told to; remembers what it was asked."""

    def __init__(self) -> None:
        self.problem: BaseException | None = None
        self.held: asyncio.Event | None = None
        self.asked: list[tuple[str, Any, requests.Call]] = []
        self.begun = threading.Event()
        self.given_up = threading.Event()
        self._callers = Admission(100, 1000, lambda: 1.0)

    def forget(self) -> None:
        """Answers anew as one that was never asked."""
        self.problem, self.held = None, None
        self.asked.clear()
        self.begun.clear()
        self.given_up.clear()

    def refusal(self, name: str, timeout_s: float | None) -> Overloaded | None:
        return self._callers.full()

    def enter(self, name: str = "other", deadline: float | None = None) -> Permit:
        return self._callers.admit()

    async def _answer(self, name: str, request: Any, call: requests.Call, answer: Answer) -> Answer:
        self.asked.append((name, request, call))
        self.begun.set()
        if self.held is not None:
            try:
                await self.held.wait()
            except asyncio.CancelledError:
                self.given_up.set()
                raise
        if self.problem is not None:
            raise self.problem
        return answer

    def start(self, name: str, request: Any, call: requests.Call, told: Told[Any]) -> GivenUp:
        async def answer() -> None:
            try:
                outcome = await getattr(self, name)(request, call)
            except ServiceError as problem:
                outcome = problem
            except Exception as problem:  # noqa: BLE001 - as of the engine, which tells bugs so
                outcome = Internal("a bug")
                outcome.__cause__ = problem
            told(outcome)

        return GivenUp(asyncio.ensure_future(answer()))

    async def retrieve(self, request: requests.Retrieval, call: requests.Call) -> requests.Retrieved:
        found = requests.Neighbors(np.array([4, 2]), np.array([0.5, 0.25], np.float32), np.array([0, 2]))
        return await self._answer("retrieve", request, call, requests.Retrieved("m", 3, found, 9))

    async def rank(self, request: requests.Ranking, call: requests.Call) -> requests.Ranked:
        scores = np.array([2.0, 1.0], np.float32)
        places = np.array([0, 1], np.int32)
        answer = requests.Ranked("m", 3, np.array([4, 2]), places, scores, {}, np.array([0, 2]))
        return await self._answer("rank", request, call, answer)

    async def recommend(self, request: requests.Recommendation, call: requests.Call) -> requests.Recommended:
        found = requests.Neighbors(np.array([4]), np.array([0.5], np.float32), np.array([0, 1]))
        answer = requests.Recommended("m", 3, found, np.array([0.125], np.float32))
        return await self._answer("recommend", request, call, answer)

    async def embed(self, request: requests.Embedding, call: requests.Call) -> requests.Embedded:
        return await self._answer("embed", request, call, requests.Embedded("m", 3, np.ones((1, 2), np.float32)))

    async def lookup(self, request: requests.Lookup, call: requests.Call) -> requests.LookedUp:
        rows = np.ones((1, 2), np.float32)
        return await self._answer("lookup", request, call, requests.LookedUp("m", 3, "t", rows, np.array([True])))

    def models(self) -> tuple[descriptions.ModelState, ...]:
        if self.problem is not None:
            raise self.problem
        return (descriptions.ModelState("m", (VersionState(3, "available"),)),)

    def model(self, target: requests.Target) -> descriptions.ModelDetails:
        self.asked.append(("model", target, requests.Call("")))
        if self.problem is not None:
            raise self.problem
        user = descriptions.FeatureDetails("user", "single", "int64", "context", required=True, table="users")
        call = descriptions.CallSignature("embed", "query", (user,), ("vector",))
        return descriptions.ModelDetails("m", 3, "2026-01-01T00:00:00Z", (call,), (), (), ())


def settings_of(root: Path, **options: Any) -> ServiceSettings:
    return ServiceSettings(root=root, **options)


def desk_of(engine: Any, settings: ServiceSettings, problem: str = "") -> Desk:
    return Desk(cast(Engine, engine), settings, Metrics(), lambda: problem, lambda: True, guards_of(settings))


class RunningDoors:
    """Both doors of a desk; closed at the end of the `with` block."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.http = ""
        self.grpc = ""
        self.loop = asyncio.new_event_loop()
        self.rpc = RpcServer(desk)
        self._socket = socket.socket(
            socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP
        )  # without its proto, asyncio leaves Nagle on
        self._socket.bind(("127.0.0.1", 0))
        self._server = HttpServer(desk, replace(patience_of(desk.settings), head_s=HEAD_S_MAX, grace_s=GRACE_S))
        self._open = threading.Event()
        self._thread = threading.Thread(target=self._run, name="doors")

    def __enter__(self) -> RunningDoors:
        self._thread.start()
        assert self._open.wait(30)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, _: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join(30)
        assert not self._thread.is_alive()

    def leave(self) -> None:
        """As a service that goes down soon; on the doors' event loop."""
        self._server.leave()
        self.rpc.leave()

    def soon(self, function: Any, *arguments: Any) -> None:
        """Runs a plain function on the doors' event loop and waits for it."""
        done = threading.Event()
        self.loop.call_soon_threadsafe(function, *arguments)
        self.loop.call_soon_threadsafe(done.set)
        assert done.wait(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(self._serve())
        self.loop.close()

    async def _serve(self) -> None:
        self.grpc = f"127.0.0.1:{await self.rpc.start('127.0.0.1', 0)}"
        scheme = "http" if self.desk.guards.certificates is None else "https"
        self.http = f"{scheme}://127.0.0.1:{self._socket.getsockname()[1]}"
        self.rpc.set_serving(True)
        serving = asyncio.ensure_future(self._server.serve(sockets=[self._socket]))
        while not self._server.started:
            await asyncio.sleep(0.01)
        self._open.set()
        await serving
        await self.rpc.stop(1)


def column(*values: Any) -> Column:
    return Column(np.array(values))


def codes_of(metrics: Metrics, door: str) -> Mapping[tuple[str, str], float]:
    """Answers counted so far at one door, by call and code."""
    return {
        (sample.labels["call"], sample.labels["code"]): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "rowcast_requests_total" and sample.labels["door"] == door
    }


@contextmanager
def log_lines() -> Iterator[io.StringIO]:
    """What the service logs meanwhile, as it writes it."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(JsonLines())
    logger = logging.getLogger("rowcast")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield written
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
