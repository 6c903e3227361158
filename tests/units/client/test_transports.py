"""Both transports against small servers of the test's own: retries, deadlines, broken connections,
strange responses.
"""

from __future__ import annotations

import socketserver
import ssl
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from rowcast_client import (
    Client,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    InvalidResponse,
    NotReady,
    Overloaded,
    Retries,
    RowcastError,
    TlsFailed,
    TooLarge,
    Unauthenticated,
    Unreachable,
    calls,
    http_transport,
)
from rowcast_client.stubs import embedding_service_pb2 as pb

from tests.units.client.servers import (
    EMBED,
    NOT_READY,
    OK,
    OVERLOADED,
    WAYS,
    Reply,
    Way,
    http_page,
    http_server,
)

KEY, CERTIFICATE = (
    Path(__file__).parent / "certificates" / name for name in ("localhost.key", "localhost.pem")
)
HTTP = Way("http", asynchronous=False)
QUICK = Retries(backoff_s=0.01)
REJECTIONS = [
    (Reply("INVALID_ARGUMENT", 400, "INVALID_ARGUMENT"), InvalidArgument),
    (Reply("TOO_LARGE", 413, "RESOURCE_EXHAUSTED"), TooLarge),
    (Reply("UNAUTHENTICATED", 401, "UNAUTHENTICATED"), Unauthenticated),
    (Reply("DEADLINE", 504, "DEADLINE_EXCEEDED"), DeadlineExceeded),
    (Reply("INTERNAL", 500, "INTERNAL"), Internal),
    (Reply(99, 500, "INTERNAL"), Internal),
]


@pytest.fixture(params=WAYS, ids=str)
def way(request: pytest.FixtureRequest) -> Way:
    chosen: Way = request.param
    return chosen


def test_client_of_an_overloaded_service_waits_as_required_and_tries_again(way: Way) -> None:
    call = calls.embed({"user": 5}, model="m", request_id="abc-1")
    # Below 3 % gRPC sends the timeout of the call before again.
    with way.server([replace(OVERLOADED, retry_after="0.5"), OK]) as server:
        result = way.send(server.url, call, retries=QUICK, timeout_s=9)
    assert (result.model, result.version, result.vectors.tolist()) == ("m", 7, [[0.5, 2.0]])
    (first, headers, body), (second, later_headers, later_body) = server.requests
    assert second - first >= 0.5
    assert headers["x-request-id"] == later_headers["x-request-id"] == "abc-1"
    assert body == later_body != b""
    before, after = [
        float(sent_headers["x-request-timeout-ms"]) / 1000
        if "x-request-timeout-ms" in sent_headers
        else float(sent_headers["remaining_s"])
        for sent_headers in (headers, later_headers)
    ]
    assert 0 < after <= before - 0.4
    assert before <= 9.1  # gRPC rounds up


def test_client_with_a_retry_after_beyond_its_deadline_fails_at_once(way: Way) -> None:
    reply = Reply("OVERLOADED", 429, "RESOURCE_EXHAUSTED", "3600")
    started = time.monotonic()
    with way.server([reply]) as server, pytest.raises(Overloaded):
        way.send(server.url, EMBED, timeout_s=600)
    assert len(server.requests) == 1
    assert time.monotonic() - started < 600


@pytest.mark.parametrize(
    ("reply", "kind"), REJECTIONS, ids=lambda parameter: getattr(parameter, "code", "")
)
def test_client_rejected_raises_the_services_error_and_never_tries_again(
    way: Way, reply: Reply, kind: type[RowcastError]
) -> None:
    with way.server([reply]) as server, pytest.raises(kind) as caught:
        way.send(server.url, EMBED, retries=QUICK)
    assert type(caught.value) is kind
    assert len(server.requests) == 1
    assert "a sentence" in caught.value.message
    assert caught.value.address == server.url
    assert caught.value.request_id == server.requests[0][1]["x-request-id"]


def test_client_of_a_service_that_never_responds_ends_with_the_deadline_and_names_the_address(
    way: Way,
) -> None:
    started = time.monotonic()
    with way.server([None]) as server, pytest.raises(DeadlineExceeded) as caught:
        way.send(server.url, EMBED, timeout_s=0.3)
    assert caught.value.message == f"{server.url} did not respond within 0.3 s"
    assert time.monotonic() - started >= 0.3


@pytest.mark.parametrize("way", WAYS[1:3], ids=str)
def test_timeout_of_a_retry_reports_why_the_attempt_before_it_failed(way: Way) -> None:
    with way.server([NOT_READY, None]) as server, pytest.raises(DeadlineExceeded) as caught:
        way.send(server.url, EMBED, retries=QUICK, timeout_s=5)
    assert len(server.requests) == 2
    assert caught.value.message == (
        f"{server.url} did not respond within 5 s; before, an attempt failed: a sentence"
    )


def test_client_ignores_the_proxies_of_the_environment(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with way.server([OK]) as server:
        assert way.send(server.url, EMBED, retries=QUICK).version == 7


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (http_page(b"hi", "text/html", "404 Not Found"), "is not a rowcast service: status 404"),
        (http_page(b"hi", "text/html"), "text/html"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "expect https://, grpc:// or grpcs://?"),
        (
            b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x00\x05\r\n\r\n",
            "expect https://, grpc:// or grpcs://?",
        ),
        (b"HTTP/1.1 200 OK\r\n\r\n" + bytes(4 << 20), "more than 1048576 bytes"),
    ],
    ids=["no service", "a page", "TLS", "HTTP/2", "endless"],
)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_response_of_another_server_is_an_error_that_names_it(
    page: bytes, words: str, asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_transport, "RESPONSE_BYTES_MAX", 1 << 20)
    with http_server([page]) as server, pytest.raises(InvalidResponse) as caught:
        Way("http", asynchronous).send(server.url, EMBED)
    assert len(server.requests) == 1
    assert words in caught.value.message
    assert server.url in caught.value.message


def test_client_whose_connection_or_proxy_fails_tries_again() -> None:
    page = http_page(b"hi", "text/html", "503 Unavailable")
    cut = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort"
    for failures in ([page], [b"", cut]):
        with http_server([*failures, OK]) as server:
            assert HTTP.send(server.url, EMBED, retries=QUICK).version == 7
        assert len(server.requests) == len(failures) + 1


def test_client_of_a_malformed_response_is_an_error(way: Way) -> None:
    broken = pb.EmbedResponse(vectors=b"12345", dim=1).SerializeToString()
    if way.transport == "http":
        broken = http_page(broken)
    with (
        way.server([broken]) as server,
        pytest.raises(InvalidResponse, match="inconsistent response"),
    ):
        way.send(server.url, EMBED)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_http_client_without_a_model_name_requests_the_only_one_that_is_served(
    asynchronous: bool,
) -> None:
    failed = pb.VersionState(version=3, state=pb.LOAD_STATE_FAILED)
    current = pb.VersionState(version=2, state=pb.LOAD_STATE_AVAILABLE, current=True)
    models = [
        pb.ModelState(name="broken", versions=[failed]),
        pb.ModelState(name="only one", versions=[failed, current]),
    ]
    listed = pb.ListModelsResponse(models=models).SerializeToString()
    unnamed = calls.embed({"user": 5})
    with http_server([http_page(listed), OK]) as server:
        Way("http", asynchronous).send(server.url, unnamed, unnamed)
    lines = [headers[""].split()[:2] for _, headers, _ in server.requests]
    path = "/v1/models/only%20one:embed"
    assert lines == [["GET", "/v1/models"], ["POST", path], ["POST", path]]


@pytest.mark.parametrize(("names", "kind"), [([], NotReady), (["a", "b"], InvalidArgument)])
def test_http_client_without_a_model_name_and_no_only_model_is_reported(
    names: list[str], kind: type[RowcastError]
) -> None:
    listed = pb.ListModelsResponse(
        models=[pb.ModelState(name=name) for name in names]
    ).SerializeToString()
    with (
        http_server([http_page(listed)]) as server,
        Client(server.url, retries=QUICK) as client,
        pytest.raises(kind),
    ):
        client.embed({"user": 5})


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_client_over_tls_trusts_the_given_authority_only(way: Way) -> None:
    with way.server([OK], tls_of(way, mutual=False)) as server:
        assert way.send(server.url, EMBED, ca_file=CERTIFICATE).version == 7
        with pytest.raises(TlsFailed) as caught:
            way.send(server.url, EMBED, retries=QUICK)
        assert f"no secure connection to {server.url}" in caught.value.message


class PlainHttp(socketserver.BaseRequestHandler):
    """Returns what servers without TLS return to anything that is no request of HTTP/1."""

    def handle(self) -> None:
        self.request.sendall(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        self.request.recv(1 << 16)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize(
    ("scheme", "expected_schemes"),
    [
        ("https", "http://, grpc:// or grpcs://"),
        ("grpcs", "http://, https:// or grpc://"),
        ("grpc", "http://, https:// or grpcs://"),
    ],
)
def test_scheme_of_another_protocol_gets_those_that_the_port_may_expect(
    scheme: str, expected_schemes: str, host: str
) -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), PlainHttp) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with (
            Client(f"{scheme}://{host}:{server.server_address[1]}", retries=QUICK) as client,
            pytest.raises(Unreachable) as caught,
        ):
            client.models(timeout_s=30)
        server.shutdown()
    assert caught.value.message.endswith(f"; does the port expect {expected_schemes}?")


def test_port_of_https_gets_the_schemes_that_it_may_expect_from_a_client_of_grpc() -> None:
    http = WAYS[-2]
    with http.server([OK], tls_of(http, mutual=False)) as server:
        address = server.url.replace("https://", "grpcs://")
        with pytest.raises(Unreachable, match=r"[a-z]; does the port expect http://, https:// or "):
            WAYS[0].send(address, EMBED, ca_file=CERTIFICATE, retries=QUICK)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_client_shows_its_token_and_its_certificate(way: Way) -> None:
    files: dict[str, Any] = {"ca_file": CERTIFICATE, "cert_file": CERTIFICATE, "key_file": KEY}
    with way.server([OK], tls_of(way, mutual=True)) as server:
        assert way.send(server.url, EMBED, token="a-secret", **files).version == 7
        assert server.requests[0][1]["authorization"].lower() == "bearer a-secret"
        with pytest.raises(Unreachable):
            way.send(server.url, EMBED, ca_file=CERTIFICATE, retries=QUICK, timeout_s=60)


def tls_of(way: Way, mutual: bool) -> Any:
    """TLS of a server, which may require a certificate of its clients."""
    if way.transport == "grpc":
        pair = (KEY.read_bytes(), CERTIFICATE.read_bytes())
        authorities = CERTIFICATE.read_bytes() if mutual else None
        return grpc.ssl_server_credentials([pair], authorities, require_client_auth=mutual)
    tls = ssl.create_default_context(
        ssl.Purpose.CLIENT_AUTH, cafile=CERTIFICATE if mutual else None
    )
    tls.load_cert_chain(CERTIFICATE, KEY)
    tls.verify_mode = ssl.CERT_REQUIRED if mutual else ssl.CERT_NONE
    return tls


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"url": "127.0.0.1:8080"}, "expected http://host:port"),
    ({"url": "ftp://host"}, "expected http://host:port"),
    ({"url": "http://host:99999"}, "cannot be read"),
    ({"url": "http://user:sec,secret@host"}, "a user or a password"),
    ({"url": "http://host?key=secret"}, "more than"),
    ({"url": "grpc://host:1/path"}, "a path"),
    ({"url": []}, "empty"),
    ({"url": ["http://a", 8080]}, "address 8080"),
    ({"url": "http://a:1,"}, "'http://'"),
    ({"url": ["http://a", "https://b"]}, "differ"),
    ({"url": "http://host", "timeout_s": 0}, "timeout_s is 0"),
    ({"url": "https://host", "ca_file": "/nowhere.pem"}, "ca_file '/nowhere.pem'"),
    ({"url": "grpcs://host", "ca_file": __file__}, f"ca_file '{__file__}'"),
    ({"url": "grpcs://host", "cert_file": __file__, "key_file": __file__}, "key_file"),
    ({"url": "https://host", "cert_file": __file__}, "cert_file and key_file"),
    ({"url": "https://host", "token": "line\nsecret: x"}, "token cannot be sent"),
    ({"url": "https://host", "token": 5}, "token cannot be sent"),
    ({"url": "http://host", "ca_file": "/ca.pem"}, "ca_file is '/ca.pem', and http://host is"),
    ({"url": "grpc://host", "key_file": "/k.pem"}, "expected https:// or grpcs://"),
    ({"url": "http://host", "headers": {"x-key": "secret "}}, "'x-key'"),
    ({"url": "grpc://host", "headers": {"x key": "secret"}}, "'x key'"),
    ({"url": "grpc://host", "retries": 3}, "retries is 3"),
]


@pytest.mark.parametrize(("options", "words"), WRONG)
def test_client_with_a_wrong_argument_is_rejected_by_name_without_secrets(
    options: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Client(**options)
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"timeout_s": -1}, "timeout_s"),
        ({"request_id": "a b"}, "request_id is 'a b'"),
        ({"request_id": 5}, "is 5"),
        ({}, "is closed"),
    ],
)
def test_call_with_a_wrong_option_or_of_a_closed_client_is_rejected_before_it_is_sent(
    option: dict[str, Any], words: str
) -> None:
    client = Client("http://127.0.0.1:1")
    if not option:
        client.close()
    with pytest.raises(InvalidArgument, match=words):
        client.embed({"user": 5}, model="m", **option)
