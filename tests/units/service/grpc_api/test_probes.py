from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from service.grpc_api.servicer import SERVICE
from tests.units.service.grpc_api.requests import WAIT_S, outcome
from tests.units.service.running import RunningService

STATUSES = health_pb2.HealthCheckResponse
REQUEST = reflection_pb2.ServerReflectionRequest
REFLECT = f"/{reflection.SERVICE_NAME}/ServerReflectionInfo"


def test_health_reports_the_server_and_the_service(
    service: RunningService, channel: grpc.Channel
) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    for name in ("", SERVICE):
        assert health.Check(health_pb2.HealthCheckRequest(service=name)).status == STATUSES.SERVING
        watch = health.Watch(health_pb2.HealthCheckRequest(service=name), timeout=WAIT_S)
        assert next(watch).status == STATUSES.SERVING
        for serving in (False, True):
            service.worker.grpc.set_serving(serving)
            assert next(watch).status == (STATUSES.SERVING if serving else STATUSES.NOT_SERVING)
        watch.cancel()
    with pytest.raises(grpc.RpcError) as unknown:
        health.Check(health_pb2.HealthCheckRequest(service="else"))
    assert unknown.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("method", ["Check", "Watch"])
def test_health_rejects_messages_that_are_no_health_checks(
    method: str, channel: grpc.Channel
) -> None:
    """Bound: a watch keeps at most 1 KiB of what its client sent."""
    for message, code in (
        (b"\xff", "INVALID_ARGUMENT"),
        (b"\x0a\x88\x27" + b"x" * 5000, "TOO_LARGE"),
    ):
        path = f"/grpc.health.v1.Health/{method}"
        pending = channel.stream_unary(path).future(iter([message]), timeout=WAIT_S)
        assert outcome(pending).code == code


@pytest.mark.parametrize("version", ["v1alpha", "v1"])
def test_reflection_lists_services_and_their_files(version: str, channel: grpc.Channel) -> None:
    names = {SERVICE, "grpc.health.v1.Health", reflection.SERVICE_NAME}
    requests = [
        REQUEST(list_services=""),
        *(REQUEST(file_containing_symbol=name) for name in sorted(names)),
    ]
    listed, *described = channel.stream_stream(
        REFLECT.replace("v1alpha", version),
        REQUEST.SerializeToString,
        reflection_pb2.ServerReflectionResponse.FromString,
    )(iter(requests), timeout=WAIT_S)
    assert {service.name for service in listed.list_services_response.service} == names
    for name, response in zip(sorted(names), described, strict=True):
        files = b"".join(response.file_descriptor_response.file_descriptor_proto)
        assert name.rpartition(".")[0].encode() in files


def test_reflection_requires_a_token_and_health_does_not(
    serve: Callable[..., RunningService], tmp_path: Path
) -> None:
    (tmp_path / "tokens").write_text("client token-0123456789abcdef\n")
    with grpc.insecure_channel(serve(tokens=tmp_path / "tokens").grpc) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        assert (
            health.Check(health_pb2.HealthCheckRequest(), timeout=WAIT_S).status
            == STATUSES.NOT_SERVING
        )
        pending = channel.stream_unary(REFLECT).future(iter([]), timeout=WAIT_S)
        assert outcome(pending).code == "UNAUTHENTICATED"
