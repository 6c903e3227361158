"""Clients with and without tokens: who is rejected learns nothing else, and takes no capacity from
others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.codec.stubs import embedding_service_pb2 as pb
from tests.bundles.small import write_small_bundle
from tests.units.service.http.clients import (
    BODY,
    RETRIEVE,
    connected,
    error_of,
    head,
    one_in_progress,
    received,
)
from tests.units.service.running import RunningService, log_lines

ALL = "all-0123456789abcdef"
ONE = "one-0123456789abcdef"
NONE = "none-0123456789abcdef"
STRANGE = "strange-0123456789abcdef"
TOKENS = f"everyone {ALL}\nranker {ONE} movies,songs\nprometheus {NONE} -\n"


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.fixture(scope="module")
def service(
    tmp_path_factory: pytest.TempPathFactory, small_towers: Path
) -> Iterator[RunningService]:
    root = tmp_path_factory.mktemp("root")
    tokens = tmp_path_factory.mktemp("secrets") / "tokens"
    tokens.write_text(TOKENS)
    write_small_bundle(root, small_towers)
    running = RunningService(root, tokens=tokens, max_request_bytes=4096)
    yield running
    running.close()


@pytest.mark.parametrize(
    ("token", "path", "status"),
    [
        (ALL, RETRIEVE, 200),
        (ALL, "/v1/models", 200),
        (ALL, "/openapi.json", 200),
        (ONE, RETRIEVE, 200),
        (ONE, "/v1/models/movies", 200),
        (ONE, "/v1/models/%6Dovies:retrieve", 200),
        (ONE, "/v1/models/other:retrieve", 403),
        (ONE, "/v1/models/other", 403),
        (ONE, "/v1/models/other/labels/x:retrieve", 403),
        (ONE, "/v1/models", 403),
        (ONE, "/openapi.json", 200),
        (ONE, "/metrics", 200),
        (NONE, RETRIEVE, 403),
        (STRANGE, RETRIEVE, 401),
        (None, RETRIEVE, 401),
        (None, "/metrics", 401),
        (None, "/docs/assets/swagger-ui.css", 401),
        (None, "/nowhere", 401),
        (None, "//livez", 401),
        (None, "/livez", 200),
        (None, "/readyz", 200),
    ],
)
def test_service_with_tokens_admits_those_with_a_token_for_it(
    token: str | None, path: str, status: int, http: httpx.Client
) -> None:
    headers = {} if token is None else bearer(token)
    url = str(http.base_url).rstrip("/") + path
    response = (
        http.post(url, json=BODY, headers=headers)
        if ":retrieve" in path
        else http.get(url, headers=headers)
    )
    assert response.status_code == status
    if status in {401, 403}:
        assert (
            error_of(response)["code"] == {401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED"}[status]
        )
        assert ("www-authenticate" in response.headers) == (status == 401)


@pytest.mark.parametrize(("token", "is_shown"), [(ALL, True), (ONE, True), (NONE, False)])
def test_document_has_examples_of_permitted_models_alone(
    token: str, is_shown: bool, http: httpx.Client
) -> None:
    document = http.get("/openapi.json", headers=bearer(token)).json()
    call = document["paths"]["/v1/models/{model}:retrieve"]["post"]
    assert ("examples" in call["requestBody"]["content"]["application/json"]) == is_shown


@pytest.mark.parametrize(("token", "status"), [(ONE, 403), (ALL, 400)])
def test_body_of_a_model_that_is_not_permitted_is_not_decoded(
    token: str, status: int, http: httpx.Client
) -> None:
    response = http.post("/v1/models/other:retrieve", content=b"no JSON", headers=bearer(token))
    assert response.status_code == status, response.text


def test_request_with_two_tokens_is_unauthenticated(http: httpx.Client) -> None:
    headers = [("authorization", f"Bearer {ALL}")] * 2
    assert http.post(RETRIEVE, json=BODY, headers=headers).status_code == 401


def test_client_without_a_token_gets_an_error_of_its_type_with_the_request_id(
    http: httpx.Client, service: RunningService
) -> None:
    def count() -> float:
        return service.value(
            "rowcast_requests_total", transport="http", call="other", code="UNAUTHENTICATED"
        )

    before = count()
    headers = {"content-type": "application/x-protobuf", "x-request-id": "mine"}
    response = http.post(RETRIEVE, content=b"\xff" * 9000, headers=headers)
    details = pb.ErrorDetails.FromString(response.content)
    assert (response.status_code, details.code, details.request_id) == (
        401,
        pb.ERROR_CODE_UNAUTHENTICATED,
        "mine",
    )
    assert count() == before + 1


@pytest.mark.parametrize("length", [99_999_999, None])
def test_body_of_a_client_without_a_token_is_not_read(
    length: int | None, service: RunningService
) -> None:
    with connected(service) as connection:
        connection.sendall(head(length))
        response = received(connection)  # which is closed, with the body never sent
    assert response.startswith(b"HTTP/1.1 401 ")
    assert service.dataplane.budget.held == 0


def test_overloaded_service_checks_the_token_first(
    serve: Callable[..., RunningService], write: Callable[..., Any], tmp_path: Path
) -> None:
    write()
    (tmp_path / "tokens").write_text(TOKENS)
    service = serve(tokens=tmp_path / "tokens", max_concurrent_requests=1, inline_max_us=0)
    with one_in_progress(service, headers=bearer(ALL)):
        for token, status in ((None, 401), (STRANGE, 401), (ALL, 429)):
            headers = {} if token is None else bearer(token)
            assert (
                httpx.post(service.http + RETRIEVE, json=BODY, headers=headers).status_code
                == status
            )


def test_log_names_the_client_of_a_request_that_fails_and_not_its_token(http: httpx.Client) -> None:
    with log_lines() as lines:
        http.post(RETRIEVE, content=b"{", headers=bearer(ONE))
        http.post(RETRIEVE, content=b"{", headers=bearer(STRANGE))
    assert lines.getvalue().count('"principal":"ranker"') == 1
    assert ONE not in lines.getvalue()


def test_document_of_a_service_with_tokens_requires_one(http: httpx.Client) -> None:
    document = http.get("/openapi.json", headers=bearer(ALL)).json()
    operations = [operation for item in document["paths"].values() for operation in item.values()]
    assert all(operation["security"] == [{"token": []}] for operation in operations)
    assert document["components"]["securitySchemes"] == {
        "token": {"type": "http", "scheme": "bearer"}
    }
