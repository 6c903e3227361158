"""The gRPC door with tokens, over TLS, and in front of peers that take too much."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from service.rpc.servicer import SERVICE
from service.rpc.transport import frames
from service.wire.stubs import embedding_service_pb2 as pb
from tests.service.doors import RunningDoors, ScriptedEngine, codes_of, desk_of, log_lines, settings_of
from tests.service.process import until
from tests.service.security.authorities import Authority, Signed

FULL, ONE, NONE = "full-0123456789abcdef", "one-0123456789abcdef", "none-0123456789abcdef"


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDoors]:
    tokens = tmp_path_factory.mktemp("secrets") / "tokens"
    tokens.write_text(f"everyone {FULL}\nranker {ONE} m,n\nprometheus {NONE} -\n")
    settings = settings_of(tmp_path_factory.mktemp("root"), tokens=tokens, body_bytes_max=4096)
    with RunningDoors(desk_of(ScriptedEngine(), settings)) as running:
        yield running


def ask(channel: grpc.Channel, method: str, message: Any, token: str | None) -> str:
    """OK, or the code of the failure, which is told alike by status and details."""
    metadata = () if token is None else (("authorization", f"Bearer {token}"),)
    call = channel.unary_unary(f"/{SERVICE}/{method}").future(
        message.SerializeToString(), timeout=20, metadata=metadata
    )
    problem = call.exception()
    if problem is None:
        return "OK"
    told = pb.ErrorDetails()
    assert rpc_status.from_call(problem).details[0].Unpack(told)
    assert told.code == call.code().name
    return str(told.code)


def retrieve(model: str) -> pb.RetrieveRequest:
    return pb.RetrieveRequest(model=pb.ModelSpec(name=model), vectors=bytes(4), k=1)


@pytest.mark.parametrize(
    ("token", "method", "message", "code"),
    [
        (FULL, "Retrieve", retrieve("other"), "OK"),
        (FULL, "Retrieve", retrieve(""), "OK"),
        (FULL, "ListModels", pb.ListModelsRequest(), "OK"),
        (ONE, "Retrieve", retrieve("m"), "OK"),
        (ONE, "GetModel", pb.GetModelRequest(model=pb.ModelSpec(name="m")), "OK"),
        (ONE, "Retrieve", retrieve("other"), "PERMISSION_DENIED"),
        (ONE, "Retrieve", retrieve(""), "PERMISSION_DENIED"),
        (ONE, "GetModel", pb.GetModelRequest(model=pb.ModelSpec(name="o")), "PERMISSION_DENIED"),
        (ONE, "ListModels", pb.ListModelsRequest(), "PERMISSION_DENIED"),
        (NONE, "Retrieve", retrieve("m"), "PERMISSION_DENIED"),
        ("strange-0123456789abcdef", "Retrieve", retrieve("m"), "UNAUTHENTICATED"),
        (None, "Retrieve", retrieve("m"), "UNAUTHENTICATED"),
        (None, "ListModels", pb.ListModelsRequest(), "UNAUTHENTICATED"),
        (None, "Retrieve", pb.RetrieveRequest(vectors=bytes(8000)), "UNAUTHENTICATED"),
    ],
)
def test_door_with_tokens_lets_those_in_whose_token_is_for_it(
    token: str | None, method: str, message: Any, code: str, doors: RunningDoors
) -> None:
    with grpc.insecure_channel(doors.grpc) as channel:
        assert ask(channel, method, message, token) == code
    if code != "OK":
        assert any(counted == code for _, counted in codes_of(doors.desk.metrics, "grpc"))


def test_door_with_tokens_answers_probes_without_one(doors: RunningDoors) -> None:
    with grpc.insecure_channel(doors.grpc) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=20)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


@contextmanager
def secured(doors: RunningDoors, authority: Authority, signed: Signed | None = None) -> Iterator[grpc.Channel]:
    credentials = grpc.ssl_channel_credentials(
        authority.file.read_bytes(),
        None if signed is None else signed.key.read_bytes(),
        None if signed is None else signed.cert.read_bytes(),
    )
    with grpc.secure_channel(doors.grpc, credentials) as channel:
        yield channel


def test_door_over_tls_answers_those_that_trust_it_alone(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    signed = ours.sign("server")
    (tmp_path / "root").mkdir()
    settings = settings_of(tmp_path / "root", tls_cert=signed.cert, tls_key=signed.key)
    with RunningDoors(desk_of(ScriptedEngine(), settings)) as doors:
        with secured(doors, ours) as channel:
            large = pb.RetrieveRequest(model=pb.ModelSpec(name="m"), vectors=bytes(4_000_000), k=1)
            for message in (retrieve("m"), retrieve("m"), large):
                assert ask(channel, "Retrieve", message, None) in {"OK", "INVALID_ARGUMENT"}
        with secured(doors, theirs) as channel, pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary(f"/{SERVICE}/Retrieve")(b"", timeout=20)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        with grpc.insecure_channel(doors.grpc) as channel, pytest.raises(grpc.RpcError):
            channel.unary_unary(f"/{SERVICE}/Retrieve")(b"", timeout=5)


def test_door_that_wants_certificates_of_callers_ends_connections_without(tmp_path: Path) -> None:
    ours = Authority(tmp_path, "ours")
    signed, friend = ours.sign("server"), ours.sign("friend")
    (tmp_path / "root").mkdir()
    settings = settings_of(tmp_path / "root", tls_cert=signed.cert, tls_key=signed.key, tls_client_ca=ours.file)
    with RunningDoors(desk_of(ScriptedEngine(), settings)) as doors:
        with secured(doors, ours) as channel, pytest.raises(grpc.RpcError):
            channel.unary_unary(f"/{SERVICE}/Retrieve")(b"", timeout=5)
        with secured(doors, ours, friend) as channel, log_lines() as written:
            assert ask(channel, "Retrieve", retrieve("m"), None) == "OK"
            with pytest.raises(grpc.RpcError):
                channel.unary_unary(f"/{SERVICE}/Retrieve")(b"\xff", timeout=20)
        assert '"caller":"friend"' in written.getvalue()


def line_to(doors: RunningDoors) -> socket.socket:
    host, port = doors.grpc.split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def ended(line: socket.socket) -> bool:
    try:
        while line.recv(1 << 20):
            pass
    except ConnectionResetError:
        pass
    return True


def test_door_that_is_full_closes_an_idle_connection_for_a_newer_one(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, connections_max=1)
    with RunningDoors(desk_of(ScriptedEngine(), settings)) as doors, line_to(doors) as idle:
        idle.sendall(frames.PREFACE + frames.settings({}))
        assert idle.recv(100)
        with grpc.insecure_channel(doors.grpc) as channel:
            assert ask(channel, "Retrieve", retrieve("m"), None) == "OK"
            assert ended(idle)


def test_door_leaves_the_peer_that_reads_least_once_too_much_is_unread(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, unread_bytes_max=1 << 20)
    with RunningDoors(desk_of(ScriptedEngine(), settings)) as doors, line_to(doors) as peer:
        room = doors.rpc._listener._room
        peer.sendall(frames.PREFACE + frames.settings({}))
        until(lambda: len(room.connections) == 1)
        (connection,) = room.connections
        with grpc.insecure_channel(doors.grpc) as channel:
            assert ask(channel, "Retrieve", retrieve("m"), None) == "OK"
            doors.soon(connection._transport.write, bytes(32 << 20))
            until(lambda: connection not in room.connections)
            assert ask(channel, "Retrieve", retrieve("m"), None) == "OK"
