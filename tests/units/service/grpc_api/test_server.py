from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from service.codec.stubs import embedding_service_pb2 as pb
from service.grpc_api.server import GrpcServer
from service.grpc_api.servicer import SERVICE, embedding_service
from tests.bundles.small import SmallBundle
from tests.units.service.grpc_api.requests import (
    PREFACE,
    WAIT_S,
    call,
    connect,
    frame,
    lookup,
    outcome,
    read_to_end,
    request_frames,
    retrieve,
)
from tests.units.service.running import RunningService, log_lines
from tests.units.service.security.authorities import Authority

STATUSES = health_pb2.HealthCheckResponse
WATCH = "/grpc.health.v1.Health/Watch"
CALLS_PER_CONNECTION = 800
HEADERS = 1
PING = 6


def test_port_in_use_is_an_error_that_names_it(service: RunningService) -> None:
    async def start() -> None:
        server = GrpcServer(service.dataplane, [embedding_service(service.worker.change_plane)])
        await server.start("127.0.0.1", int(service.grpc.partition(":")[2]))

    with pytest.raises(OSError, match=rf"gRPC cannot listen on {service.grpc}"):
        asyncio.run(start())


def test_stop_waits_for_calls_and_ends_watches(
    write: Callable[..., SmallBundle], serve: Callable[..., RunningService]
) -> None:
    write()
    service = serve(inline_max_us=0)
    tower = service.waiting()
    with grpc.insecure_channel(service.grpc) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(service=SERVICE)
        )
        assert next(watch).status == STATUSES.SERVING
        pending = channel.unary_unary(f"/{SERVICE}/Retrieve").future(
            retrieve().SerializeToString(), timeout=WAIT_S
        )
        assert tower.entered.wait(WAIT_S)
        service.drain()
        assert {response.status for response in watch} <= {STATUSES.NOT_SERVING}
        assert watch.code() is grpc.StatusCode.OK
        tower.release.set()
        assert outcome(pending).code == "OK"


def test_idle_connections_and_those_without_ping_responses_are_closed(
    service: RunningService,
) -> None:
    """Bound: keep_alive_s for a connection without calls; for one with a call, the same and as long
    for the response.
    """
    idle = [connect(service.grpc) for _ in range(50)]
    for client in idle[:25]:
        client.sendall(PREFACE)
    watching = connect(service.grpc)
    watching.sendall(PREFACE + frame(4, 1, 0) + request_frames(WATCH, b""))
    for client in (*idle, watching):
        with client:
            received = read_to_end(client)
    assert b"ping_timeout" in received


def test_tls_serves_clients_that_trust_it_and_names_them_in_the_log(
    write: Callable[..., SmallBundle], serve: Callable[..., RunningService], tmp_path: Path
) -> None:
    write()
    ours = Authority(tmp_path, "ours")
    signed = ours.sign("server")
    friend = ours.sign("friend")
    service = serve(tls_cert=signed.cert, tls_key=signed.key, tls_client_ca=ours.file)
    trusted = ours.file.read_bytes()
    credentials = grpc.ssl_channel_credentials(
        trusted, friend.key.read_bytes(), friend.cert.read_bytes()
    )
    with grpc.secure_channel(service.grpc, credentials) as channel, log_lines() as written:
        assert call(channel, "Retrieve", retrieve()).code == "OK"
        assert call(channel, "Retrieve", b"\xff").code == "INVALID_ARGUMENT"
        named = pb.RetrieveRequest(model=pb.ModelSpec(name="books"))
        assert call(channel, "Retrieve", named.SerializeToString()).code == "NOT_FOUND"
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    failed = [line for line in lines if line["event"] == "request_failed"]
    assert [line["principal"] for line in failed] == ["friend", "friend"]
    assert [line["model"] for line in failed] == ["", ""]
    assert "books" not in written.getvalue()
    for channel in (
        grpc.secure_channel(service.grpc, grpc.ssl_channel_credentials(trusted)),
        grpc.insecure_channel(service.grpc),
    ):
        with channel:
            assert (
                call(channel, "Retrieve", retrieve(), timeout=WAIT_S).status
                is grpc.StatusCode.UNAVAILABLE
            )


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


def test_calls_that_wait_to_be_accepted_are_not_cancelled(service: RunningService) -> None:
    """Bound: 10,000. gRPC's own limit is 1,000, and it ends further calls as CANCELLED."""
    begun = threading.Event()
    release = threading.Event()

    async def block() -> None:
        begun.set()
        release.wait(WAIT_S)

    blocking = asyncio.run_coroutine_threadsafe(block(), service.loop)
    assert begun.wait(WAIT_S)
    message = lookup(1).SerializeToString()
    streams = range(1, 2 * CALLS_PER_CONNECTION, 2)
    calls = b"".join(request_frames(f"/{SERVICE}/Lookup", message, stream) for stream in streams)
    with ExitStack() as closing:
        clients = [closing.enter_context(connect(service.grpc)) for _ in range(4)]
        for client in clients:
            client.sendall(PREFACE + calls + frame(PING, 0, 0, bytes(8)))
        # The response to the ping comes once all calls before it have arrived.
        seen = [frame_types_until_ping(client) for client in clients]
        release.set()
    blocking.result(WAIT_S)
    assert HEADERS not in {frame_type for types in seen for frame_type in types}
    with grpc.insecure_channel(service.grpc) as channel:
        assert call(channel, "Lookup", lookup(1)).code == "OK"


def frame_types_until_ping(client: socket.socket) -> list[int]:
    """Reads frames until the response to a ping; returns their types."""
    types: list[int] = []
    with client.makefile("rb") as received:
        while not types or types[-1] != PING:
            head = received.read(9)
            received.read(int.from_bytes(head[:3], "big"))
            types.append(head[3])
    return types
