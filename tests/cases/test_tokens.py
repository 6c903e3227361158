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

from service.errors import Code
from service.grpc_api.servicer import SERVICE
from tensors.stubs import tensorflow_serving_pb2 as tf_pb
from tests.bundles.small import write_small_bundle
from tests.cases.raw_requests import raw_request, sentence_of
from tests.cases.ways import Ways, serving
from tests.differential import tensor_forms as forms
from tests.e2e.process import WAIT_S
from tests.units.service.grpc_api.requests import call, never_sends, outcome, retrieve
from tests.units.service.http.clients import BODY, RETRIEVE, connected, head, received
from tests.units.service.running import RunningService, log_lines
from tests.units.service.security.authorities import Authority

ALL = "all-0123456789abcdef"
ONE = "one-0123456789abcdef"
NONE = "none-0123456789abcdef"
STRANGE = "strange-0123456789abcdef"
TOKENS = f"everyone {ALL}\nranker {ONE} movies,songs\nprometheus {NONE} -\n"
MODELS = "POST /v1/models"
OTHER = f"{MODELS}/other"
INFER = forms.json_body({"user": np.array([5])}, "query")
PREDICT = {"signature_name": "query", "instances": [{"user": 5}]}
UNDECODABLE = b"\xff" * 20
SECRET = retrieve("secret").SerializeToString()
NAMED = tf_pb.PredictRequest(model_spec=tf_pb.ModelSpec(name="other")).SerializeToString()
FOREIGN: list[tuple[str, bytes]] = [
    (f"/{forms.PREDICTION}/Predict", NAMED),
    # The name in another order of fields is known once the message is parsed.
    (f"/{forms.PREDICTION}/Predict", b"\x1a\x01x" + NAMED),
    (
        f"/{forms.SERVICE}/ModelInfer",
        forms.message({"user": np.array([5])}, "query", "other").SerializeToString(),
    ),
]
"""Methods of other protocols for a model that does not exist."""
OK = None
BAD = Code.INVALID_ARGUMENT
GONE = Code.NOT_FOUND
DENIED = Code.PERMISSION_DENIED
STRANGER = Code.UNAUTHENTICATED
REQUESTS: list[tuple[str | None, str, Any, Code | None]] = [
    (ALL, f"{MODELS}/movies:retrieve", BODY, OK),
    (ALL, f"{OTHER}:retrieve", {"zzz": 1}, BAD),
    (ONE, f"{MODELS}/movies:retrieve", BODY, OK),
    (ONE, f"{MODELS}/%6Dovies:retrieve", BODY, OK),
    # The body of a model that is not permitted is not decoded.
    (ONE, f"{OTHER}:retrieve", {"zzz": 1}, DENIED),
    (ONE, "GET /v1/models/other", None, DENIED),
    (ONE, "GET /v1/models", None, DENIED),
    (ONE, "GET /metrics", None, OK),
    (ONE, forms.INFER, INFER, OK),
    (ONE, "POST /v2/models/other/infer", INFER, DENIED),
    (ONE, "POST /v2/repository/index", {}, DENIED),
    (ONE, f"{MODELS}/movies:predict", PREDICT, OK),
    (ONE, f"{OTHER}:predict", PREDICT, DENIED),
    (NONE, f"{MODELS}/movies:retrieve", BODY, DENIED),
    (STRANGE, f"{MODELS}/movies:retrieve", BODY, STRANGER),
    (None, f"{MODELS}/movies:retrieve", BODY, STRANGER),
    (None, "GET /metrics", None, STRANGER),
    (None, "GET /nowhere", None, STRANGER),
    (None, "GET //livez", None, STRANGER),
    (None, forms.INFER, INFER, STRANGER),
    (None, f"{MODELS}/movies:predict", PREDICT, STRANGER),
    (None, "GET /livez", None, OK),
    (None, "GET /v2/health/live", None, OK),
    (ALL, f"/{SERVICE}/Retrieve", retrieve(), OK),
    (ONE, f"/{SERVICE}/Retrieve", retrieve("movies"), OK),
    (ONE, f"/{SERVICE}/Retrieve", SECRET, DENIED),
    (ONE, f"/{SERVICE}/Retrieve", retrieve(), DENIED),
    # The model is read before the rest of the message is decoded, wherever it is.
    (ONE, f"/{SERVICE}/Retrieve", SECRET + UNDECODABLE, DENIED),
    (ONE, f"/{SERVICE}/Retrieve", UNDECODABLE + SECRET, DENIED),
    (ONE, f"/{SERVICE}/Retrieve", retrieve("movies").SerializeToString() + UNDECODABLE, BAD),
    (ONE, f"/{SERVICE}/ListModels", b"", DENIED),
    (STRANGE, f"/{SERVICE}/Retrieve", retrieve(), STRANGER),
    (None, f"/{SERVICE}/ListModels", b"", STRANGER),
    *[
        (token, method, message, code)
        for token, code in ((ONE, DENIED), (None, STRANGER), (ALL, GONE))
        for method, message in FOREIGN
    ],
]
"""Token, path or method, the body, and the code of the error."""


def bearer(token: str | None) -> dict[str, str]:
    return {} if token is None else {"authorization": f"Bearer {token}"}


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory, small_towers: Path) -> Iterator[Ways]:
    root = tmp_path_factory.mktemp("root")
    tokens = tmp_path_factory.mktemp("secrets") / "tokens"
    tokens.write_text("\ufeff" + TOKENS)  # as editors on Windows write it
    write_small_bundle(root, small_towers)
    protocols = ("open-inference", "tensorflow-serving")
    with serving(root, tokens=tokens, protocols=protocols) as ways:
        yield ways


@pytest.mark.parametrize(("token", "target", "content", "code"), REQUESTS)
def test_token_permits_a_request_or_not(
    token: str | None, target: str, content: Any, code: Code | None, ways: Ways
) -> None:
    request = raw_request(target, content, bearer(token))
    response = ways.by_bytes(request)
    if not target.startswith("/"):
        assert ("www-authenticate" in response.headers) == (code is STRANGER)
    if code is None:
        assert response.status in {200, "OK"}, response.content
        return
    sentence = sentence_of(request, response, code)
    assert code is BAD or "zzz" not in sentence


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
                retrieve().SerializeToString(), metadata=tuple(bearer(ALL).items()), timeout=WAIT_S
            )
            assert tower.entered.wait(WAIT_S)
            for token, status in ((None, 401), (STRANGE, 401), (ALL, 429)):
                response = httpx.post(
                    service.http + RETRIEVE, json=BODY, headers=bearer(token), verify=False
                )
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
