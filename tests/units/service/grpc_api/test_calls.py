"""Calls, health checks, reflection and connections of the gRPC server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from service.codec.stubs import embedding_service_pb2 as pb
from service.grpc_api.servicer import SERVICE
from tests.bundles.small import SmallBundle, write_small_bundle
from tests.e2e.process import WAIT_S, until
from tests.units.service.grpc_api.requests import (
    PREFACE,
    call,
    connect,
    frame,
    lookup,
    never_sends,
    outcome,
    read_to_end,
    request_frames,
    users,
)
from tests.units.service.running import RunningService

MAX_REQUEST_BYTES = 1 << 20
STATUSES = health_pb2.HealthCheckResponse
HEALTH = "grpc.health.v1.Health"
REFLECTION = reflection_pb2.ServerReflectionRequest


@pytest.fixture(scope="module")
def service(
    small_towers: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningService]:
    root = tmp_path_factory.mktemp("root")
    write_small_bundle(root, small_towers)
    running = RunningService(root, max_request_bytes=MAX_REQUEST_BYTES)
    yield running
    running.close()


@pytest.fixture
def channel(service: RunningService) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(service.grpc, [("grpc.max_send_message_length", -1)]) as channel:
        yield channel


def counted(service: RunningService, name: str, code: str) -> float:
    return service.value("rowcast_requests_total", transport="grpc", call=name, code=code)


@pytest.mark.parametrize("compression", list(grpc.Compression))
@pytest.mark.parametrize("ids", [3, 50_000])
def test_messages_are_read_whatever_their_size_and_compression(
    ids: int, compression: grpc.Compression, channel: grpc.Channel
) -> None:
    looked_up = call(channel, "Lookup", lookup(*range(ids)), compression=compression)
    assert len(pb.LookupResponse.FromString(looked_up.response).found) == ids
    phases = [part.split(";")[0] for part in looked_up.trailing["server-timing"].split(", ")]
    assert (phases[0], phases[-1]) == ("decode", "encode")


def test_message_over_the_limit_is_too_large_as_sent_or_decompressed(
    service: RunningService, channel: grpc.Channel
) -> None:
    before = counted(service, "retrieve", "CANCELLED")
    rejected = call(channel, "Retrieve", bytes(8 * MAX_REQUEST_BYTES))
    assert rejected.status is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "retry-after" not in rejected.trailing
    until(lambda: counted(service, "retrieve", "CANCELLED") == before + 1)
    large = pb.RetrieveRequest(index="x" * MAX_REQUEST_BYTES)
    for compression in (grpc.Compression.Gzip, grpc.Compression.Deflate):
        with grpc.insecure_channel(service.grpc, compression=compression) as compressing:
            assert call(compressing, "Retrieve", large).code == "TOO_LARGE"
            # A message that begins with field 15 looks like the beginning of `deflate`.
            small = pb.RecommendRequest(context={"user": users(5)}).SerializeToString()
            assert call(compressing, "Recommend", b"\x78\x01" + small).code == "OK"
    until(lambda: service.dataplane.budget.held == 0)


def test_calls_without_a_message_or_of_no_method_are_refused(
    service: RunningService, channel: grpc.Channel
) -> None:
    empty = outcome(channel.stream_unary(f"/{SERVICE}/Retrieve").future(iter(())))
    assert empty.code == "INVALID_ARGUMENT"
    unknown = call(channel, "Nothing")
    assert (unknown.code, SERVICE in unknown.response) == ("UNIMPLEMENTED", True)
    others = {
        "/other.Service/Method": SERVICE,
        "/inference.GRPCInferenceService/ModelInfer": "--protocols open-inference",
        "/tensorflow.serving.PredictionService/Predict": "--protocols tensorflow-serving",
    }
    for method, words in others.items():
        with pytest.raises(grpc.RpcError) as error:
            channel.unary_unary(method)(b"", timeout=WAIT_S)
        assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert words in error.value.details()
    assert counted(service, "other", "UNIMPLEMENTED") == 1 + len(others)
    assert service.dataplane.budget.held == 0


def test_request_ids_are_returned_and_those_of_proxies_replaced(channel: grpc.Channel) -> None:
    trace = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
    for metadata, expected in (
        ([("x-request-id", "r-1")], "r-1"),
        ([("traceparent", trace)], "0123456789abcdef0123456789abcdef"),
        ([("x-request-id", "a"), ("x-request-id", "b")], None),
        ([("x-request-id", "")], None),
    ):
        for message in (lookup(3), b"\xff"):
            returned = call(channel, "Lookup", message, metadata=metadata).trailing["x-request-id"]
            assert returned == expected or (expected is None and len(returned) == 32)


def test_response_counts_as_bytes_in_flight_until_its_client_reads_it(
    service: RunningService,
) -> None:
    budget = service.dataplane.budget
    message = lookup(*range(8_000)).SerializeToString()
    with connect(service.grpc) as client:
        client.sendall(PREFACE + request_frames(f"/{SERVICE}/Lookup", message))
        until(lambda: budget.held > 8_000 * 4 * 8)
    until(lambda: budget.held == 0)


def test_metadata_that_refers_to_itself_is_too_large(service: RunningService) -> None:
    """A value of 4,000 bytes and 1,000 references to it, of a byte each: gRPC takes 4 MB of it."""
    begun = request_frames(f"/{SERVICE}/Lookup", b"")
    block = begun[9 : 9 + int.from_bytes(begun[:3], "big")]
    value = b"\x40\x01a\x7f\xa1\x1e" + b"x" * 4_000
    with connect(service.grpc) as client:
        client.sendall(PREFACE + frame(1, 4, 1, block + value + b"\xbe" * 1_000))
        received = b""
        while b"grpc-status\x018" not in received:
            part = client.recv(1 << 16)
            assert part, received
            received += part


def test_health_reports_and_watches_the_server_and_the_service(
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
    for name, message, code in (
        ("Check", health_pb2.HealthCheckRequest(service="else").SerializeToString(), "NOT_FOUND"),
        *[(name, b"\xff", "INVALID_ARGUMENT") for name in ("Check", "Watch")],
        # A watch keeps at most 1 KiB of what its client sent.
        *[(name, b"\x0a\x88\x27" + b"x" * 5000, "TOO_LARGE") for name in ("Check", "Watch")],
    ):
        pending = channel.stream_unary(f"/{HEALTH}/{name}").future(iter([message]), timeout=WAIT_S)
        assert outcome(pending).code == code


@pytest.mark.parametrize("version", ["v1alpha", "v1"])
def test_reflection_lists_services_and_their_files(version: str, channel: grpc.Channel) -> None:
    names = {SERVICE, HEALTH, reflection.SERVICE_NAME}
    requests = [REFLECTION(list_services="")]
    requests += [REFLECTION(file_containing_symbol=name) for name in sorted(names)]
    path = f"/{reflection.SERVICE_NAME}/ServerReflectionInfo".replace("v1alpha", version)
    listed, *described = channel.stream_stream(
        path, REFLECTION.SerializeToString, reflection_pb2.ServerReflectionResponse.FromString
    )(iter(requests), timeout=WAIT_S)
    assert {service.name for service in listed.list_services_response.service} == names
    for name, response in zip(sorted(names), described, strict=True):
        files = b"".join(response.file_descriptor_response.file_descriptor_proto)
        assert name.rpartition(".")[0].encode() in files


def test_idle_connections_and_those_that_never_send_are_closed(
    write: Callable[..., SmallBundle], serve: Callable[..., RunningService]
) -> None:
    """Bounds: keep_alive_s for a connection without calls; for one with a call, the same and as
    long for the response to a ping; body_timeout_s for a message.
    """
    write()
    service = serve(body_timeout_s=1, keep_alive_s=1)
    with grpc.insecure_channel(service.grpc) as channel:
        assert outcome(never_sends(channel, "Embed")).code == "DEADLINE"
    idle = [connect(service.grpc) for _ in range(50)]
    for client in idle[:25]:
        client.sendall(PREFACE)
    watching = connect(service.grpc)
    watching.sendall(PREFACE + frame(4, 1, 0) + request_frames(f"/{HEALTH}/Watch", b""))
    for client in (*idle, watching):
        with client:
            received = read_to_end(client)
    assert b"ping_timeout" in received


def test_connections_beyond_max_connections_are_closed(
    write: Callable[..., SmallBundle], serve: Callable[..., RunningService]
) -> None:
    write()
    service = serve(max_connections=2)
    with grpc.insecure_channel(service.grpc) as channel, connect(service.grpc) as second:
        assert call(channel, "Lookup", lookup(1)).code == "OK"
        second.sendall(PREFACE)
        assert second.recv(1)
        with connect(service.grpc) as third:
            assert read_to_end(third) == b""
        assert call(channel, "Lookup", lookup(1)).code == "OK"
