"""Callers with and without tokens, over plain HTTP and TLS."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from service.engine.admission import Permit
from service.wire.stubs import embedding_service_pb2 as pb
from tests.service.doors import RunningDoors, ScriptedEngine, codes_of, desk_of, log_lines, settings_of
from tests.service.security.authorities import Authority

FULL, ONE, NONE = "full-0123456789abcdef", "one-0123456789abcdef", "none-0123456789abcdef"
ASK = "/v1/models/m:retrieve"


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDoors]:
    root = tmp_path_factory.mktemp("root")
    tokens = tmp_path_factory.mktemp("secrets") / "tokens"
    tokens.write_text(f"everyone {FULL}\nranker {ONE} m,n\nprometheus {NONE} -\n")
    with RunningDoors(desk_of(ScriptedEngine(), settings_of(root, tokens=tokens, body_bytes_max=4096))) as running:
        yield running


@pytest.fixture
def http(doors: RunningDoors) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=doors.http, timeout=20) as client:
        yield client


@pytest.mark.parametrize("path", [ASK, "/v1/models"])
def test_two_tokens_are_no_token(path: str, http: httpx.Client) -> None:
    for _ in range(2):  # the second time, a call's head is known
        answer = http.request("POST" if path == ASK else "GET", path, headers=[("authorization", f"Bearer {FULL}")] * 2)
        assert answer.status_code == 401


@pytest.mark.parametrize(
    ("token", "path", "status"),
    [
        (FULL, ASK, 200),
        (FULL, "/v1/models", 200),
        (FULL, "/openapi.json", 200),
        (FULL, "/metrics", 200),
        (ONE, ASK, 200),
        (ONE, "/v1/models/m", 200),
        (ONE, "/v1/models/m/versions/3:retrieve", 200),
        (ONE, "/v1/models/%6D:retrieve", 200),
        (ONE, "/v1/models/other:retrieve", 403),
        (ONE, "/v1/models/other", 403),
        (ONE, "/v1/models/other/versions/3", 403),
        (ONE, "/v1/models/other/versions/3:retrieve", 403),
        (ONE, "/v1/models/%6Fther:retrieve", 403),
        (ONE, "/v1/models", 403),
        (ONE, "/v1/models/", 403),
        (ONE, "/openapi.json", 403),
        (ONE, "/metrics", 200),
        (NONE, ASK, 403),
        (NONE, "/metrics", 200),
        ("strange-0123456789abcdef", ASK, 401),
        ("strange-0123456789abcdef", "/metrics", 401),
        (None, ASK, 401),
        (None, "/v1/models", 401),
        (None, "/metrics", 401),
        (None, "/docs", 401),
        (None, "/nowhere", 401),
        (None, "/livez", 200),
        (None, "/readyz", 200),
    ],
)
def test_door_with_tokens_lets_those_in_whose_token_is_for_it(
    token: str | None, path: str, status: int, http: httpx.Client
) -> None:
    headers = {} if token is None else bearer(token)
    hot = path.endswith(":retrieve")
    answer = http.post(path, json={}, headers=headers) if hot else http.get(path, headers=headers)
    assert answer.status_code == status
    if status in {401, 403}:
        told = {401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED"}[status]
        assert answer.json()["error"]["code"] == told
        assert answer.headers["x-request-id"] == answer.json()["error"]["request_id"]
        assert ("www-authenticate" in answer.headers) == (status == 401)


def test_door_without_a_token_refuses_in_the_form_and_with_the_id_of_the_caller(
    http: httpx.Client, doors: RunningDoors
) -> None:
    before = codes_of(doors.desk.metrics, "http").get(("other", "UNAUTHENTICATED"), 0)
    headers = {"content-type": "application/x-protobuf", "x-request-id": "mine"}
    answer = http.post(ASK, content=b"\xff" * 9000, headers=headers)
    assert answer.status_code == 401
    told = pb.ErrorDetails.FromString(answer.content)
    assert (told.code, told.request_id) == ("UNAUTHENTICATED", "mine")
    assert codes_of(doors.desk.metrics, "http")["other", "UNAUTHENTICATED"] == before + 1


def test_door_with_tokens_says_so_in_its_document(http: httpx.Client) -> None:
    told = http.get("/openapi.json", headers=bearer(FULL)).json()
    assert told["security"] == [{"token": []}]
    assert told["components"]["securitySchemes"] == {"token": {"type": "http", "scheme": "bearer"}}


def test_door_reads_no_body_of_whoever_has_no_token(doors: RunningDoors) -> None:
    host, port = doors.http.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as line:
        line.sendall(f"POST {ASK} HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999\r\n\r\n".encode())
        assert line.recv(4096).startswith(b"HTTP/1.1 401 ")


def test_door_gives_callers_without_a_token_none_of_the_room_of_others(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(f"everyone {FULL}\n")
    (tmp_path / "root").mkdir()
    desk = desk_of(engine := Counted(), settings_of(tmp_path / "root", tokens=tmp_path / "tokens"))
    with RunningDoors(desk) as doors:
        for token, entered in ((None, 0), ("strange-0123456789abcdef", 0), (FULL, 1)):
            httpx.post(doors.http + ASK, json={}, headers={} if token is None else bearer(token))
            assert engine.entered == entered


class Counted(ScriptedEngine):
    """Counts whom it lets in."""

    entered = 0

    def enter(self, name: str = "other", deadline: float | None = None) -> Permit:
        self.entered += 1
        return super().enter(name, deadline)


def test_door_names_the_caller_in_the_log_of_a_call_that_fails(http: httpx.Client) -> None:

    with log_lines() as written:
        http.post(ASK, content=b"{", headers=bearer(ONE))
    assert '"caller":"ranker"' in written.getvalue()
    assert ONE not in written.getvalue()


def test_door_over_tls_answers_those_that_trust_it_alone(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    signed = ours.sign("server")
    (tmp_path / "root").mkdir()
    settings = settings_of(tmp_path / "root", tls_cert=signed.cert, tls_key=signed.key)
    with RunningDoors(desk_of(ScriptedEngine(), settings)) as doors:
        with httpx.Client(verify=ssl.create_default_context(cafile=str(ours.file))) as client:
            for _ in range(3):
                answer = client.post(doors.http + ASK, json={})
                assert (answer.status_code, answer.json()["version"]) == (200, 3)
            large = client.post(doors.http + ASK, content=b" " * 3_000_000 + b"{}")
            assert large.status_code == 200
        with (
            httpx.Client(verify=ssl.create_default_context(cafile=str(theirs.file))) as client,
            pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"),
        ):
            client.post(doors.http + ASK, json={})
        with httpx.Client() as client, pytest.raises(httpx.RemoteProtocolError):
            client.get(doors.http.replace("https", "http") + "/livez")


def test_door_that_wants_certificates_of_callers_ends_connections_without(tmp_path: Path) -> None:
    ours = Authority(tmp_path, "ours")
    signed, friend = ours.sign("server"), ours.sign("friend")
    (tmp_path / "root").mkdir()
    settings = settings_of(tmp_path / "root", tls_cert=signed.cert, tls_key=signed.key, tls_client_ca=ours.file)
    with RunningDoors(desk_of(ScriptedEngine(), settings)) as doors:
        trust = ssl.create_default_context(cafile=str(ours.file))
        with httpx.Client(verify=trust) as client, pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
            client.get(doors.http + "/livez")
        trust.load_cert_chain(friend.cert, friend.key)
        with httpx.Client(verify=trust) as client, log_lines() as written:
            assert client.get(doors.http + "/livez").status_code == 200
            assert client.post(doors.http + ASK, content=b"{").status_code == 400
        assert '"caller":"friend"' in written.getvalue()
