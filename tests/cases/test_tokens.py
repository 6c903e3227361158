"""Who may do what, of a service with tokens or certificates: each client, by every protocol, and
what those learn who are refused.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from service.grpc_api.servicer import SERVICE
from tensors.stubs import tensorflow_serving_pb2 as tf_pb
from tests.bundles.small import write_small_bundle
from tests.cases.ways import Ways, serving
from tests.differential import tensor_forms as forms
from tests.units.service.grpc_api.requests import call, never_sends, outcome, retrieve
from tests.units.service.http.clients import BODY, RETRIEVE, connected, error_of, head, received
from tests.units.service.running import RunningService, log_lines
from tests.units.service.security.authorities import Authority

ALL = "all-0123456789abcdef"
ONE = "one-0123456789abcdef"
NONE = "none-0123456789abcdef"
STRANGE = "strange-0123456789abcdef"
TOKENS = f"everyone {ALL}\nranker {ONE} movies,songs\nprometheus {NONE} -\n"
OTHER = "/v1/models/other"
INFER = forms.json_body({"user": np.array([5])}, "query")
PREDICT = {"signature_name": "query", "instances": [{"user": 5}]}
PATHS: list[tuple[str | None, str, Any, int]] = [
    (ALL, RETRIEVE, BODY, 200),
    (ALL, f"{OTHER}:retrieve", {"zzz": 1}, 400),
    (ONE, RETRIEVE, BODY, 200),
    (ONE, "/v1/models/%6Dovies:retrieve", BODY, 200),
    # The body of a model that is not permitted is not decoded.
    (ONE, f"{OTHER}:retrieve", {"zzz": 1}, 403),
    (ONE, OTHER, None, 403),
    (ONE, "/v1/models", None, 403),
    (ONE, "/metrics", None, 200),
    (ONE, "/v2/models/movies/infer", INFER, 200),
    (ONE, "/v2/models/other/infer", INFER, 403),
    (ONE, "/v2/repository/index", {}, 403),
    (ONE, "/v1/models/movies:predict", PREDICT, 200),
    (ONE, f"{OTHER}:predict", PREDICT, 403),
    (NONE, RETRIEVE, BODY, 403),
    (STRANGE, RETRIEVE, BODY, 401),
    (None, RETRIEVE, BODY, 401),
    (None, "/metrics", None, 401),
    (None, "/nowhere", None, 401),
    (None, "//livez", None, 401),
    (None, "/v2/models/movies/infer", INFER, 401),
    (None, "/v1/models/movies:predict", PREDICT, 401),
    (None, "/livez", None, 200),
    (None, "/v2/health/live", None, 200),
]
"""Token, path, body, status."""
UNDECODABLE = b"\xff" * 20
SECRET = retrieve("secret").SerializeToString()
METHODS: list[tuple[str | None, str, Any, str]] = [
    (ALL, "Retrieve", retrieve(), "OK"),
    (ONE, "Retrieve", retrieve("movies"), "OK"),
    (ONE, "Retrieve", SECRET, "PERMISSION_DENIED"),
    (ONE, "Retrieve", retrieve(), "PERMISSION_DENIED"),
    # The model is read before the rest of the message is decoded, wherever it is.
    (ONE, "Retrieve", SECRET + UNDECODABLE, "PERMISSION_DENIED"),
    (ONE, "Retrieve", UNDECODABLE + SECRET, "PERMISSION_DENIED"),
    (ONE, "Retrieve", retrieve("movies").SerializeToString() + UNDECODABLE, "INVALID_ARGUMENT"),
    (ONE, "ListModels", b"", "PERMISSION_DENIED"),
    (STRANGE, "Retrieve", retrieve(), "UNAUTHENTICATED"),
    (None, "ListModels", b"", "UNAUTHENTICATED"),
]
"""Token, method, message, code."""
NAMED = tf_pb.PredictRequest(model_spec=tf_pb.ModelSpec(name="other")).SerializeToString()
FOREIGN: list[tuple[str, bytes]] = [
    ("tensorflow.serving.PredictionService/Predict", NAMED),
    # The name in another order of fields is known once the message is parsed.
    ("tensorflow.serving.PredictionService/Predict", b"\x1a\x01x" + NAMED),
    (
        f"{forms.SERVICE}/ModelInfer",
        forms.message({"user": np.array([5])}, "query", "other").SerializeToString(),
    ),
]
"""Methods of other protocols for a model that a client may not use."""


def bearer(token: str | None) -> dict[str, str]:
    return {} if token is None else {"authorization": f"Bearer {token}"}


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory, small_towers: Path) -> Iterator[Ways]:
    root = tmp_path_factory.mktemp("root")
    tokens = tmp_path_factory.mktemp("secrets") / "tokens"
    tokens.write_text(TOKENS)
    write_small_bundle(root, small_towers)
    protocols = ("open-inference", "tensorflow-serving")
    with serving(root, tokens=tokens, protocols=protocols) as ways:
        yield ways


@pytest.mark.parametrize(("token", "path", "body", "status"), PATHS)
def test_token_permits_a_path_or_not(
    token: str | None, path: str, body: Any, status: int, ways: Ways
) -> None:
    method = "GET" if body is None else "POST"
    # httpx would take `//livez` for a host.
    url = ways.service.http + path
    response = httpx.request(method, url, json=body, headers=bearer(token))
    assert response.status_code == status, response.text
    assert ("www-authenticate" in response.headers) == (status == 401)
    if status not in {200, 400}:
        text = response.text
        assert "zzz" not in text
        if "infer" in path or "predict" in path or path.startswith("/v2") or "metadata" in path:
            assert list(response.json()) == ["error"]
            assert isinstance(response.json()["error"], str)
        else:
            code = {401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED"}[status]
            assert error_of(response)["code"] == code


@pytest.mark.parametrize(("token", "method", "message", "code"), METHODS)
def test_token_permits_a_method_or_not(
    token: str | None, method: str, message: Any, code: str, ways: Ways
) -> None:
    assert call(ways.clients.channel, method, message, token).code == code


@pytest.mark.parametrize(("method", "message"), FOREIGN)
def test_token_permits_a_method_of_another_protocol(
    method: str, message: bytes, ways: Ways
) -> None:
    send = ways.clients.channel.unary_unary(f"/{method}")
    for token, code in ((ONE, "PERMISSION_DENIED"), (None, "UNAUTHENTICATED"), (ALL, "NOT_FOUND")):
        with pytest.raises(grpc.RpcError) as problem:
            send(message, metadata=tuple(bearer(token).items()), timeout=20)
        assert problem.value.code().name == code


def test_request_with_two_tokens_is_unauthenticated(ways: Ways) -> None:
    headers = [("authorization", f"Bearer {ALL}")] * 2
    assert ways.clients.http.post(RETRIEVE, json=BODY, headers=headers).status_code == 401
    assert call(ways.clients.channel, "ListModels", metadata=headers).code == "UNAUTHENTICATED"


@pytest.mark.parametrize("length", [99_999_999, None])
def test_body_of_a_client_without_a_token_is_not_read(length: int | None, ways: Ways) -> None:
    with connected(ways.service) as connection:
        connection.sendall(head(length))
        response = received(connection)  # which is closed, with the body never sent
    assert response.startswith(b"HTTP/1.1 401 ")
    assert outcome(never_sends(ways.clients.channel, "Retrieve")).code == "UNAUTHENTICATED"
    assert ways.service.dataplane.budget.held == 0


def test_full_service_checks_the_token_first(
    tmp_path: Path, small_towers: Path, ways: Ways
) -> None:
    settings = {"max_concurrent_requests": 1, "inline_max_us": 0}
    tokens = ways.service.settings.tokens
    write_small_bundle(tmp_path, small_towers)
    with serving(tmp_path, tokens=tokens, **settings) as full:
        service = full.service
        tower = service.waiting()
        with grpc.insecure_channel(service.grpc) as channel:
            pending = channel.unary_unary(f"/{SERVICE}/Retrieve").future(
                retrieve().SerializeToString(), metadata=tuple(bearer(ALL).items()), timeout=20
            )
            assert tower.entered.wait(20)
            for token, status in ((None, 401), (STRANGE, 401), (ALL, 429)):
                response = httpx.post(service.http + RETRIEVE, json=BODY, headers=bearer(token))
                assert response.status_code == status
            metadata = tuple(bearer(ALL).items())
            assert outcome(never_sends(channel, "Rank", metadata)).code == "OVERLOADED"
            tower.release.set()
            assert outcome(pending).code == "OK"


def test_log_names_the_client_and_neither_its_token_nor_an_unknown_model(ways: Ways) -> None:
    with log_lines() as lines:
        for token in (ONE, STRANGE):
            ways.clients.http.post(RETRIEVE, content=b"{", headers=bearer(token))
        ways.clients.http.post("/v1/models/books:rank", json={}, headers=bearer(ALL))
    logged = [json.loads(line) for line in lines.getvalue().splitlines()]
    principals = [line.get("principal", "") for line in logged]
    assert (principals[0], principals[-1]) == ("ranker", "everyone")
    assert not [text for text in (ONE, STRANGE, "books") if text in lines.getvalue()]


def test_document_requires_a_token_and_shows_permitted_models_alone(ways: Ways) -> None:
    for token, is_shown in ((ALL, True), (ONE, True), (NONE, False)):
        document = ways.clients.http.get("/openapi.json", headers=bearer(token)).json()
        body = document["paths"]["/v1/models/{model}:retrieve"]["post"]["requestBody"]
        assert ("examples" in body["content"]["application/json"]) == is_shown
    items = document["paths"].values()
    assert all(
        operation["security"] == [{"token": []}] for item in items for operation in item.values()
    )
    scheme = {"type": "http", "scheme": "bearer"}
    assert document["components"]["securitySchemes"] == {"token": scheme}


def test_certificate_names_the_client_over_both_transports_and_no_other_is_served(
    tmp_path: Path, small_towers: Path
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    write_small_bundle(root, small_towers)
    ours = Authority(tmp_path, "ours")
    server = ours.sign("server")
    service = RunningService(
        root, tls_cert=server.cert, tls_key=server.key, tls_client_ca=ours.file
    )
    signed = [ours.sign(name) for name in ("friend", "other")]
    clients = []
    for certificate in signed:
        context = ssl.create_default_context(cafile=str(ours.file))
        context.load_cert_chain(certificate.cert, certificate.key)
        clients.append(httpx.Client(base_url=service.http, verify=context))
    trusted = ours.file.read_bytes()
    friend = grpc.ssl_channel_credentials(
        trusted, signed[0].key.read_bytes(), signed[0].cert.read_bytes()
    )
    with log_lines() as written:
        for number in (0, 1, 0, 1, 1):  # on connections that are kept
            assert clients[number].post(RETRIEVE, json={"kk": 1}).status_code == 400
        with grpc.secure_channel(service.grpc, friend) as channel:
            assert call(channel, "Retrieve", retrieve()).code == "OK"
            assert call(channel, "Retrieve", b"\xff").code == "INVALID_ARGUMENT"
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    names = [line["principal"] for line in lines if line["event"] == "request_failed"]
    assert names == ["friend", "other", "friend", "other", "other", "friend"]
    for client in clients:
        client.close()
    untrusted = grpc.ssl_channel_credentials(trusted)
    for channel in (
        grpc.secure_channel(service.grpc, untrusted),
        grpc.insecure_channel(service.grpc),
    ):
        with channel:
            assert call(channel, "Retrieve", retrieve()).status is grpc.StatusCode.UNAVAILABLE
    service.close()
