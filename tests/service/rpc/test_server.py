"""The gRPC door on a real socket."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status

from service.engine.requests import Target
from service.errors import ANSWERS, INTERNAL_SENTENCE, Code, Overloaded, ServiceError
from service.rpc.server import RpcServer
from service.rpc.servicer import SERVICE
from service.wire.operations import OPERATIONS
from service.wire.stubs import embedding_service_pb2 as pb
from service.wire.stubs.embedding_service_pb2_grpc import EmbeddingServiceStub
from tests.service.doors import RunningDoors, ScriptedEngine, codes_of, desk_of, settings_of


def _raw(channel: grpc.Channel, method: str, body: bytes, **options: Any) -> tuple[bytes, dict[str, Any]]:
    answer, call = channel.unary_unary(f"/{SERVICE}/{method}").with_call(body, timeout=10, **options)
    return answer, dict(call.trailing_metadata())


def _failure(channel: grpc.Channel, method: str, body: bytes, **options: Any) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as failed:
        _raw(channel, method, body, **options)
    return failed.value


def _details(problem: grpc.RpcError) -> pb.ErrorDetails:
    status = rpc_status.from_call(problem)
    details = pb.ErrorDetails()
    assert status.details[0].Unpack(details)
    assert status.message == problem.details() == details.message
    assert dict(problem.trailing_metadata())["x-request-id"] == details.request_id
    return details


def test_call_answers_and_returns_the_request_id(channel: grpc.Channel, engine: ScriptedEngine) -> None:
    body = pb.RetrieveRequest(model=pb.ModelSpec(name="m", version=3), k=2).SerializeToString()
    answer, trailer = _raw(channel, "Retrieve", body, metadata=(("x-request-id", "r-1"),))
    assert pb.RetrieveResponse.FromString(answer).searched == 9
    assert trailer["x-request-id"] == "r-1"
    name, request, call = engine.asked[0]
    assert (name, request.target, request.k, call.request_id) == ("retrieve", Target("m", 3), 2, "r-1")


def test_every_method_of_the_contract_is_answered_by_the_generated_stub(channel: grpc.Channel) -> None:
    stub = EmbeddingServiceStub(channel)
    assert stub.Retrieve(pb.RetrieveRequest()).searched == 9
    assert len(stub.Rank(pb.RankRequest()).scores) == 8
    assert len(stub.Recommend(pb.RecommendRequest()).retrieval_scores) == 4
    assert stub.Embed(pb.EmbedRequest()).dim == 2
    assert stub.Lookup(pb.LookupRequest(ids=pb.Column(int64s=b""))).table == "t"
    assert stub.ListModels(pb.ListModelsRequest()).models[0].name == "m"
    assert stub.GetModel(pb.GetModelRequest()).calls[0].tower == "query"
    methods = {method.name for method in pb.DESCRIPTOR.services_by_name["EmbeddingService"].methods}
    assert methods == {operation.method for operation in OPERATIONS.values()} | {"ListModels", "GetModel"}


@pytest.mark.parametrize("code", list(Code))
def test_failure_of_each_code_has_the_status_of_the_table_and_details(
    code: Code, channel: grpc.Channel, engine: ScriptedEngine
) -> None:
    kinds = {kind.code: kind for kind in ServiceError.__subclasses__()}
    engine.problem = Overloaded("busy", 1.5) if code is Code.OVERLOADED else kinds[code]("a sentence")
    problem = _failure(channel, "Rank", b"", metadata=(("x-request-id", "r-1"),))
    details = _details(problem)
    assert problem.code().name == ANSWERS[code].grpc
    assert (details.code, details.request_id) == (code.value, "r-1")
    assert details.message == (INTERNAL_SENTENCE if code is Code.INTERNAL else str(engine.problem))
    trailer = dict(problem.trailing_metadata())
    assert trailer.get("retry-after") == ("1.5" if code is Code.OVERLOADED else None)


def test_overload_tells_when_to_come_back_in_the_standard_way(channel: grpc.Channel, engine: ScriptedEngine) -> None:
    engine.problem = Overloaded("busy", 0.25)
    status = rpc_status.from_call(_failure(channel, "Rank", b""))
    retry = error_details_pb2.RetryInfo()
    assert status.details[1].Unpack(retry)
    assert retry.retry_delay.ToMilliseconds() == 250


def test_bug_tells_the_caller_nothing_and_the_log_everything(
    channel: grpc.Channel, engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.problem = RuntimeError("the password is 1234")
    problem = _failure(channel, "Rank", b"")
    assert (problem.code().name, problem.details()) == ("INTERNAL", INTERNAL_SENTENCE)
    assert b"1234" not in dict(problem.trailing_metadata())["grpc-status-details-bin"]
    assert "the password is 1234" in caplog.text
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 1


@pytest.mark.parametrize("method", ["Retrieve", "Rank", "Recommend", "Embed", "Lookup", "ListModels", "GetModel"])
def test_body_that_does_not_decode_is_invalid_argument(
    method: str, channel: grpc.Channel, engine: ScriptedEngine
) -> None:
    problem = _failure(channel, method, b"\xff\xff\xff")
    assert problem.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert re.fullmatch(r"the body is no \w+: its bytes do not decode as protobuf", _details(problem).message)
    assert engine.asked == []


def test_body_over_the_limit_is_told_with_details(channel: grpc.Channel) -> None:
    problem = _failure(channel, "Retrieve", bytes(4097))
    assert problem.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert _details(problem).code == "TOO_LARGE"
    assert "retry-after" not in dict(problem.trailing_metadata())


def test_body_far_over_the_limit_is_refused_before_it_is_read(channel: grpc.Channel) -> None:
    problem = _failure(channel, "Retrieve", bytes(8 << 20))
    assert problem.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert _details(problem).message == f"the body has {8 << 20} bytes; at most 4096 are taken"
    assert _raw(channel, "Retrieve", b"")[0]


def test_deadline_of_the_caller_is_the_calls(channel: grpc.Channel, engine: ScriptedEngine) -> None:
    _raw(channel, "Embed", b"")
    channel.unary_unary(f"/{SERVICE}/Embed")(b"", timeout=60)
    channel.unary_unary(f"/{SERVICE}/Embed")(b"")
    deadlines = [call.deadline for _, _, call in engine.asked]
    assert deadlines[0] is not None
    assert deadlines[1] is not None
    assert 45 < deadlines[1] - deadlines[0] < 55
    assert deadlines[2] is None


def test_caller_that_gives_up_is_given_up(doors: RunningDoors, channel: grpc.Channel, engine: ScriptedEngine) -> None:
    doors.soon(lambda: setattr(engine, "held", asyncio.Event()))
    call = channel.unary_unary(f"/{SERVICE}/Retrieve").future(b"")
    assert engine.begun.wait(10)
    call.cancel()
    assert engine.given_up.wait(10)
    engine.held = None
    assert _raw(channel, "Retrieve", b"")[0]
    assert codes_of(doors.desk.metrics, "grpc")["retrieve", "CANCELLED"] >= 1


def test_unknown_method_is_unimplemented_and_told_as_every_failure(doors: RunningDoors, channel: grpc.Channel) -> None:
    problem = _failure(channel, "Nothing", b"", metadata=(("x-request-id", "r-2"),))
    assert problem.code() == grpc.StatusCode.UNIMPLEMENTED
    details = _details(problem)
    assert (details.code, details.request_id) == ("UNIMPLEMENTED", "r-2")
    assert "Nothing" in details.message
    assert codes_of(doors.desk.metrics, "grpc")["other", "UNIMPLEMENTED"] == 1


def test_health_names_the_server_and_the_service(doors: RunningDoors, channel: grpc.Channel) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    kinds = health_pb2.HealthCheckResponse
    for name in ("", SERVICE):
        watch = health.Watch(health_pb2.HealthCheckRequest(service=name), timeout=10)
        assert next(watch).status == kinds.SERVING
        doors.rpc.set_serving(False)
        assert next(watch).status == kinds.NOT_SERVING
        doors.rpc.set_serving(True)
        assert next(watch).status == kinds.SERVING
        watch.cancel()
    with pytest.raises(grpc.RpcError) as unknown:
        health.Check(health_pb2.HealthCheckRequest(service="else"))
    assert unknown.value.code() is grpc.StatusCode.NOT_FOUND


def test_reflection_lists_the_service_and_its_file(channel: grpc.Channel) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    ask = reflection_pb2.ServerReflectionRequest
    listed, described = stub.ServerReflectionInfo(
        iter([ask(list_services=""), ask(file_containing_symbol=SERVICE)]), timeout=10
    )
    names = {service.name for service in listed.list_services_response.service}
    assert {SERVICE, "grpc.health.v1.Health"} <= names
    assert any(b"EmbeddingService" in proto for proto in described.file_descriptor_response.file_descriptor_proto)


def test_server_says_not_serving_until_told_and_refuses_a_taken_port(tmp_path: Path) -> None:
    async def run() -> None:
        desk = desk_of(ScriptedEngine(), settings_of(tmp_path))
        first, second = RpcServer(desk), RpcServer(desk)
        port = await first.start("127.0.0.1", 0)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            health = health_pb2_grpc.HealthStub(channel)
            answer = await health.Check(health_pb2.HealthCheckRequest())
            assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
        with pytest.raises(OSError, match="cannot listen on 127"):
            await second.start("127.0.0.1", port)
        await first.stop(0)
        await second.stop(0)

    asyncio.run(run())


def test_stop_waits_for_the_call_in_flight(tmp_path: Path) -> None:
    async def run() -> None:
        engine = ScriptedEngine()
        engine.held = asyncio.Event()
        server = RpcServer(desk_of(engine, settings_of(tmp_path)))
        port = await server.start("127.0.0.1", 0)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            answer = asyncio.ensure_future(channel.unary_unary(f"/{SERVICE}/Embed")(b""))
            await asyncio.to_thread(engine.begun.wait, 10)
            stopped = asyncio.ensure_future(server.stop(10))
            await asyncio.sleep(0)
            engine.held.set()
            assert pb.EmbedResponse.FromString(await answer).dim == 2
            await stopped

    asyncio.run(run())


def test_stop_ends_watches_of_health_instead_of_waiting_for_them(tmp_path: Path) -> None:
    async def run() -> None:
        server = RpcServer(desk_of(ScriptedEngine(), settings_of(tmp_path)))
        port = await server.start("127.0.0.1", 0)
        server.set_serving(True)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            kinds = health_pb2.HealthCheckResponse
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=SERVICE))
            while (await watch.read()).status != kinds.SERVING:
                pass
            await asyncio.wait_for(server.stop(60), 10)
            while (told := await watch.read()) is not grpc.aio.EOF:
                assert told.status == kinds.NOT_SERVING
            assert await watch.code() is grpc.StatusCode.OK

    asyncio.run(run())
