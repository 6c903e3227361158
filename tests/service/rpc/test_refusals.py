"""Calls over gRPC that there is no room for: refused before anything is begun for them."""

from __future__ import annotations

import time

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from service.engine.admission import Permit
from service.errors import Overloaded
from service.rpc.servicer import SERVICE
from service.wire.stubs import embedding_service_pb2 as pb
from tests.service.doors import RunningDoors, ScriptedEngine, codes_of

MANY = 50


@pytest.fixture
def asked(engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float | None]]:
    """Has the doors' engine refuse; what it was asked."""
    asked: list[tuple[str, float | None]] = []

    def enter(name: str, deadline: float | None) -> Permit:
        asked.append((name, deadline))
        raise Overloaded("64 calls are in flight", 0.25, "calls")

    monkeypatch.setattr(engine, "enter", enter)
    return asked


def test_calls_without_room_are_refused_and_never_decoded(
    channel: grpc.Channel, engine: ScriptedEngine, doors: RunningDoors, asked: list[tuple[str, float | None]]
) -> None:
    before = codes_of(doors.desk.metrics, "grpc").get(("rank", "OVERLOADED"), 0)
    method = channel.unary_unary(f"/{SERVICE}/Rank")
    began = time.monotonic()
    calls = [method.future(b"\xff" * 2000, timeout=60, metadata=(("x-request-id", f"r-{at}"),)) for at in range(MANY)]
    for at, call in enumerate(calls):
        problem = call.exception(60)
        assert problem.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        details = pb.ErrorDetails()
        assert rpc_status.from_call(problem).details[0].Unpack(details)
        told = (details.code, details.message, details.request_id)
        assert told == ("OVERLOADED", "64 calls are in flight", f"r-{at}")
        assert dict(call.trailing_metadata())["retry-after"] == "0.25"
    assert engine.asked == []
    assert [name for name, _ in asked] == ["rank"] * MANY
    assert all(deadline is not None and began < deadline < began + 120 for _, deadline in asked)
    assert codes_of(doors.desk.metrics, "grpc")["rank", "OVERLOADED"] == before + MANY


def test_health_and_models_are_answered_while_calls_are_refused(
    channel: grpc.Channel, asked: list[tuple[str, float | None]]
) -> None:
    health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    assert health.status == health_pb2.HealthCheckResponse.SERVING
    assert pb.ListModelsResponse.FromString(channel.unary_unary(f"/{SERVICE}/ListModels")(b"")).models[0].name == "m"
    assert asked == []
