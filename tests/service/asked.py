"""A service on a real small bundle behind both of its doors, and the three ways of asking it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
from grpc_status import rpc_status

from service.engine.engine import Engine
from service.errors import ANSWERS, Code
from service.generations.loader import Loader
from service.generations.switch import Switch
from service.metrics import Metrics
from service.rpc.servicer import SERVICE
from service.wire.operations import OPERATIONS
from service.wire.stubs import embedding_service_pb2 as pb
from tests.service.cases import LIMITS, MODEL, Case
from tests.service.doors import RunningDoors, desk_of, settings_of

PROTOBUF = {"content-type": "application/x-protobuf"}
ASKED = {"requests": [{"features": {"user": 5}}]}
SIMPLE = Case("simple", "retrieve", ASKED, {"features": {"user": pb.Column(int64s=(5).to_bytes(8, "little"))}})


@dataclass(frozen=True)
class Service:
    """A running service and clients of both of its doors."""

    engine: Engine
    switch: Switch
    doors: RunningDoors
    http: httpx.Client
    channel: grpc.Channel


@dataclass(frozen=True)
class Answer:
    """What one way of asking got: the code, the sentence or the answer's body."""

    code: str
    sentence: str
    body: bytes


def serve(root: Path, load: bool = True, **options: Any) -> Iterator[Service]:
    """A service with one version loaded, or none."""
    limits = settings_of(root, **{**LIMITS, **options})
    switch, metrics = Switch(), Metrics()
    engine = Engine(switch, limits, metrics, 2)
    desk = desk_of(engine, limits)
    if load:
        loader = Loader(root, None, "sizes", 2, 0, engine.warm_up)
        switch.put(loader.load(MODEL, 1))
    switch.settle()
    with (
        RunningDoors(desk) as doors,
        httpx.Client(base_url=doors.http, timeout=30) as http,
        grpc.insecure_channel(doors.grpc) as channel,
    ):
        yield Service(engine, switch, doors, http, channel)
    engine.close()
    switch.close()


def by_http(service: Service, case: Case, protobuf: bool, headers: dict[str, str] | None = None) -> Answer:
    version = f"/versions/{case.version}" if case.version else ""
    if protobuf:
        body, kind = case.body(), PROTOBUF
    else:
        body = case.json if isinstance(case.json, bytes) else json.dumps(case.json).encode()
        kind = {"content-type": "application/json"}
    path = f"/v1/models/{case.model}{version}:{case.call}"
    answer = service.http.post(path, content=body, headers={"x-request-id": "agree", **kind, **(headers or {})})
    assert answer.headers["x-request-id"] == "agree"
    if answer.status_code == 200:
        return Answer("OK", "", answer.content)
    told = pb.ErrorDetails.FromString(answer.content) if protobuf else pb.ErrorDetails(**answer.json()["error"])
    assert answer.status_code == ANSWERS[Code(told.code)].http
    assert told.request_id == "agree"
    return Answer(told.code, told.message, b"")


def by_grpc(service: Service, case: Case, timeout: float = 30) -> Answer:
    method = service.channel.unary_unary(f"/{SERVICE}/{OPERATIONS[case.call].method}")
    call = method.future(case.body(), timeout=timeout, metadata=(("x-request-id", "agree"),))
    problem = call.exception()
    assert dict(call.trailing_metadata())["x-request-id"] == "agree"
    if problem is None:
        return Answer("OK", "", call.result())
    told = pb.ErrorDetails()
    assert rpc_status.from_call(problem).details[0].Unpack(told)
    assert call.code().name == ANSWERS[Code(told.code)].grpc
    assert told.request_id == "agree"
    return Answer(told.code, told.message, b"")


def ask(service: Service, case: Case) -> tuple[Answer, Answer, Answer]:
    return by_http(service, case, protobuf=False), by_http(service, case, protobuf=True), by_grpc(service, case)


def expect(service: Service, code: str) -> None:
    by_json, by_protobuf, by_grpc = ask(service, SIMPLE)
    assert (by_json.code, by_protobuf.code, by_grpc.code) == (code,) * 3
    assert by_json.sentence == by_protobuf.sentence == by_grpc.sentence
