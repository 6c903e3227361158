"""Requests of the admin API: who is accepted, what is rejected, what the responses are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.admin.api import MAX_BODY_BYTES, create_admin_app
from service.config import ServiceSettings
from service.coordinator import Coordinator
from service.security.tokens import TokenStore
from service.versions.state_file import NAME
from tests.units.service.admin.workers import Worker

Send = Callable[..., httpx.Response]
TOKEN = "0123456789abcdef-operator"
MOVIES_TOKEN = "0123456789abcdef-of-movies"
BOOKS_TOKEN = "0123456789abcdef-of-books"
JSON = {"content-type": "application/json"}


def sender(
    settings: ServiceSettings, coordinator: Coordinator, tokens: TokenStore | None = None
) -> Send:
    app = create_admin_app(settings, coordinator, tokens)

    def send(
        method: str, path: str, host: str = "127.0.0.1:8090", **options: Any
    ) -> httpx.Response:
        async def once() -> httpx.Response:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
                return await client.request(method, path, **options)

        return asyncio.run(once())

    return send


@pytest.fixture
def send(settings: ServiceSettings, coordinator: Coordinator, worker: Worker) -> Send:
    return sender(settings, coordinator)


@pytest.fixture
def send_with_tokens(
    settings: ServiceSettings, coordinator: Coordinator, worker: Worker, tmp_path: Path
) -> Send:
    file = tmp_path / "operators"
    file.write_text(f"me {TOKEN}\nmovies {MOVIES_TOKEN} movies\nbooks {BOOKS_TOKEN} books\n")
    return sender(settings, coordinator, TokenStore(file))


def test_command_returns_the_status_after_it(send: Send) -> None:
    response = send("POST", "/v1/models/movies/rollback", json={}, headers={"x-request-id": "one"})
    assert (response.status_code, response.json()["models"][0]["current"]) == (200, 1)
    assert (response.headers["x-request-id"], response.headers["connection"]) == ("one", "close")
    assert send("GET", "/v1/status").json()["revision"] == 1
    assert send("POST", "/v1/models/movies/unpin", headers=JSON).json()["models"][0]["wanted"] == {}


MOVIES = "/v1/models/movies"
REFUSED: list[tuple[str, str, dict[str, Any], int, str]] = [
    ("POST", f"{MOVIES}/pin", {"json": {}}, 400, "versions"),
    ("POST", f"{MOVIES}/pin", {"json": {"versions": ["1"]}}, 400, "versions.0"),
    ("POST", f"{MOVIES}/pin", {"json": {"versions": [2**63]}}, 400, "versions.0"),
    ("POST", f"{MOVIES}/pin", {"json": {"versions": [1], "more": 1}}, 400, "more"),
    ("POST", f"{MOVIES}/pin", {"json": {"versions": [7]}}, 404, "version 7"),
    ("POST", f"{MOVIES}/pin", {"headers": JSON}, 400, "versions"),
    ("POST", f"{MOVIES}/label", {"json": {"label": "a b", "version": 1}}, 400, "'a b'"),
    ("POST", f"{MOVIES}/drain", {"json": {}}, 404, "does not exist"),
    *[
        ("POST", f"{MOVIES}/deny/add", {"json": {"ids": ids}}, 400, "ids")
        for ids in ([], [1.5], [True], [2**63])
    ],
    ("POST", f"{MOVIES}/deny/remove", {"json": {"ids": [7]}}, 400, "'7'"),
    ("POST", "/v1/models/films/unpin", {"json": {}}, 404, "'films'"),
    ("POST", "/v1/models/films/deny/add", {"json": {"ids": [7]}}, 404, "'films'"),
    ("GET", "/v1/models/films/deny", {}, 404, "'films'"),
    ("POST", "/v1/log-level", {"json": {"level": "loud"}}, 400, "'loud'"),
    ("POST", "/v1/drain", {"content": b"{", "headers": JSON}, 400, "JSON"),
    ("POST", "/v1/drain", {"content": b"[" * 60_000, "headers": JSON}, 400, "content"),
    ("POST", "/v1/drain", {"content": b"{}"}, 400, "content-type"),
    ("POST", "/v1/drain", {"data": {"a": "b"}}, 400, "content-type"),
    ("POST", "/v1/drain", {"json": {"a": "x" * MAX_BODY_BYTES}}, 413, str(MAX_BODY_BYTES)),
    ("GET", "/v1/drain", {}, 404, "does not exist"),
    ("POST", "/v1/drain?force=1", {"json": {}}, 400, "'force'"),
    ("GET", "/v1/status?model=movies", {}, 400, "'model'"),
]


@pytest.mark.parametrize(("method", "path", "options", "status", "words"), REFUSED)
def test_invalid_request_is_rejected_and_changes_nothing(
    send: Send, root: Path, method: str, path: str, options: Any, status: int, words: str
) -> None:
    response = send(method, path, **options)
    assert response.status_code == status
    error = response.json()["error"]
    assert words in error["message"]
    assert error["request_id"] == response.headers["x-request-id"]
    assert not (root / NAME).exists()


def test_body_in_pieces_is_limited_and_one_that_does_not_arrive_is_not_awaited(
    send: Send, root: Path, coordinator: Coordinator
) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b" " * (MAX_BODY_BYTES // 2)

    async def stuck() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(3600)

    large = send("POST", "/v1/drain", content=pieces(), headers=JSON)
    assert large.json()["error"]["code"] == "TOO_LARGE"
    hasty = sender(ServiceSettings(root=root, request_timeout_s=0.05), coordinator)
    response = hasty("POST", "/v1/drain", content=stuck(), headers=JSON)
    assert (response.status_code, response.json()["error"]["code"]) == (504, "DEADLINE")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8090", 200),
        ("localhost:8090", 200),
        ("[::1]:8090", 200),
        ("rebound.example:8090", 403),
        ("127.0.0.1.rebound.example", 403),
    ],
)
def test_without_tokens_only_names_of_this_machine_are_accepted(
    send: Send, host: str, status: int
) -> None:
    assert send("GET", "/v1/status", host=host).status_code == status
    assert send("GET", "/openapi.json", host=host).status_code == status


@pytest.mark.parametrize(
    ("token", "path", "status", "code"),
    [
        (None, "/v1/drain", 401, "UNAUTHENTICATED"),
        ("wrong-but-long-enough", "/v1/drain", 401, "UNAUTHENTICATED"),
        (TOKEN, "/v1/drain", 200, ""),
        (MOVIES_TOKEN, "/v1/models/movies/unpin", 200, ""),
        (MOVIES_TOKEN, "/v1/drain", 403, "PERMISSION_DENIED"),
        (BOOKS_TOKEN, "/v1/models/movies/unpin", 403, "PERMISSION_DENIED"),
        (BOOKS_TOKEN, "/v1/models/movies/deny/add", 403, "PERMISSION_DENIED"),
        (None, "/v1/nothing", 401, "UNAUTHENTICATED"),
    ],
)
def test_token_decides_what_an_operator_may_do(
    send_with_tokens: Send, root: Path, token: str | None, path: str, status: int, code: str
) -> None:
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    response = send_with_tokens("POST", path, host="service.example", json={}, headers=headers)
    assert response.status_code == status
    if code:
        assert response.json()["error"]["code"] == code
        assert not (root / NAME).exists()


def test_operator_of_some_models_sees_these_alone(send_with_tokens: Send) -> None:
    def names(method: str, path: str, token: str, **options: Any) -> list[str]:
        response = send_with_tokens(
            method, path, headers={"authorization": f"Bearer {token}"}, **options
        )
        return [model["name"] for model in response.json()["models"]]

    assert names("GET", "/v1/status", MOVIES_TOKEN) == ["movies"]
    assert names("GET", "/v1/status", BOOKS_TOKEN) == []
    assert names("POST", "/v1/models/movies/unpin", MOVIES_TOKEN, json={}) == ["movies"]
    report = send_with_tokens(
        "GET", "/v1/report", headers={"authorization": f"Bearer {MOVIES_TOKEN}"}
    )
    assert (report.status_code, report.json()["error"]["code"]) == (403, "PERMISSION_DENIED")


def test_openapi_document_describes_every_command(send: Send) -> None:
    paths = send("GET", "/openapi.json").json()["paths"]
    of_models = (
        "load",
        "unload",
        "pin",
        "unpin",
        "label",
        "unlabel",
        "rollback",
        "deny/add",
        "deny/remove",
        "deny",
    )
    assert paths.keys() == {
        "/v1/status",
        "/v1/report",
        "/v1/topology",
        "/v1/drain",
        "/v1/undrain",
        "/v1/log-level",
        *(f"/v1/models/{{model}}/{name}" for name in of_models),
    }
    assert "422" not in paths["/v1/models/{model}/pin"]["post"]["responses"]


def test_command_that_a_worker_does_not_follow_yet_is_only_accepted(
    root: Path, coordinator: Coordinator
) -> None:
    settings = ServiceSettings(root=root)
    worker = Worker(settings, coordinator)
    worker.close()
    send = sender(settings, coordinator)
    response = send("POST", "/v1/models/movies/deny/add", json={"ids": [7]})
    assert (
        response.status_code,
        [process["revision"] for process in response.json()["processes"]],
    ) == (
        202,
        [0],
    )
    assert send("GET", "/v1/models/movies/deny").json() == {
        "model": "movies",
        "revision": 1,
        "ids": ["7"],
    }
