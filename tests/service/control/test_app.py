"""The admin listener's requests: who is let in, what is refused, what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.control.app import BODY_BYTES_MAX, AdminApp
from service.control.control import Control
from service.control.orders import ORDERS
from service.engine.descriptions import ModelState
from service.generations.policy import Policy
from service.security.tokens import Tokens
from tests.service.running import Running, version_of
from tests.service.small_bundle import SmallBundle

Ask = Callable[..., httpx.Response]
TOKEN = "0123456789abcdef-operator"
OF_BOOKS = "0123456789abcdef-of-books"


def asking(service: Running, tokens: Tokens | None) -> Ask:
    async def models() -> tuple[ModelState, ...]:
        return service.engine.models()

    control = Control(service.settings, Policy(), service.switch, service.watcher, service.state, models)
    app = AdminApp(control, tokens)

    def ask(method: str, path: str, host: str = "127.0.0.1:8090", **options: Any) -> httpx.Response:
        async def once() -> httpx.Response:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
                return await client.request(method, path, **options)

        return asyncio.run(once())

    return ask


@pytest.fixture
def service(write: Callable[..., SmallBundle], run: Callable[..., Running]) -> Running:
    write()
    running = run()
    write(version=2)
    running.scan()
    return running


@pytest.fixture
def ask(service: Running) -> Ask:
    return asking(service, None)


def test_order_is_carried_out_and_answered_with_the_status(service: Running, ask: Ask) -> None:
    answer = ask("POST", "/v1/models/movies/rollback", json={})
    assert (answer.status_code, answer.json()["models"][0]["current"]) == (200, 1)
    assert version_of(service) == 1
    assert ask("GET", "/v1/status").json()["revision"] == 1


@pytest.mark.parametrize(
    ("method", "path", "options", "status", "message"),
    [
        ("POST", "/v1/models/movies/pin", {"json": {}}, 400, "versions is '{}': Field required"),
        ("POST", "/v1/models/movies/pin", {"json": {"versions": ["1"]}}, 400, "versions.0"),
        ("POST", "/v1/models/movies/pin", {"json": {"versions": [1], "more": 1}}, 400, "more"),
        ("POST", "/v1/models/movies/pin", {"json": {"versions": [7]}}, 404, "version 7"),
        ("POST", "/v1/models/movies/pin", {"json": [1]}, 400, "the body"),
        ("POST", "/v1/models/films/unpin", {"json": {}}, 404, "no model 'films'"),
        ("POST", "/v1/log-level", {"json": {"level": "loud"}}, 400, "level is 'loud'"),
        ("POST", "/v1/drain", {"content": b"{", "headers": {"content-type": "application/json"}}, 400, "no JSON"),
        ("POST", "/v1/drain", {"content": b"{}"}, 400, "content-type is ''"),
        ("POST", "/v1/drain", {"data": {"a": "b"}}, 400, "content-type is 'application/x-www-form-urlencoded'"),
        ("POST", "/v1/drain", {"json": {"a": "x" * BODY_BYTES_MAX}}, 413, f"at most {BODY_BYTES_MAX}"),
        ("POST", "/v1/models/movies/drain", {"json": {}}, 404, "is not there"),
        ("POST", "/v1/unpin", {"json": {}}, 404, "is not there"),
        ("GET", "/v1/drain", {}, 404, "is not there"),
    ],
)
def test_request_that_cannot_be_meant_is_refused_and_changes_nothing(
    service: Running, ask: Ask, method: str, path: str, options: dict[str, Any], status: int, message: str
) -> None:
    answer = ask(method, path, **options)
    assert answer.status_code == status
    assert message in answer.json()["error"]["message"]
    assert service.state.stamp() is None


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8090", 200),
        ("localhost:8090", 200),
        ("[::1]:8090", 200),
        ("rebound.example:8090", 403),
        ("127.0.0.1.rebound.example", 403),
        ("10.0.0.1:8090", 403),
    ],
)
def test_without_tokens_only_addresses_of_this_machine_are_taken(ask: Ask, host: str, status: int) -> None:
    assert ask("GET", "/v1/status", host=host).status_code == status


@pytest.mark.parametrize(
    ("token", "path", "status", "code"),
    [
        (None, "/v1/drain", 401, "UNAUTHENTICATED"),
        ("wrong-but-long-enough", "/v1/drain", 401, "UNAUTHENTICATED"),
        (TOKEN, "/v1/drain", 200, ""),
        (OF_BOOKS, "/v1/drain", 403, "PERMISSION_DENIED"),
        (OF_BOOKS, "/v1/models/movies/unpin", 403, "PERMISSION_DENIED"),
    ],
)
def test_token_lets_its_operator_in(
    service: Running, tmp_path: Path, token: str | None, path: str, status: int, code: str
) -> None:
    file = tmp_path / "operators"
    file.write_text(f"me {TOKEN}\nbooks {OF_BOOKS} books\n")
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    answer = asking(service, Tokens(file))("POST", path, host="service.example", json={}, headers=headers)
    assert answer.status_code == status
    if code:
        assert answer.json()["error"]["code"] == code
        assert service.state.stamp() is None


def test_operator_of_some_models_is_told_of_these_alone(service: Running, tmp_path: Path) -> None:
    file = tmp_path / "operators"
    file.write_text(f"me {TOKEN} movies\nbooks {OF_BOOKS} books\n")
    ask = asking(service, Tokens(file))
    told = [
        ask("GET", "/v1/status", headers={"authorization": f"Bearer {token}"}).json()["models"]
        for token in (TOKEN, OF_BOOKS)
    ]
    assert [[model["name"] for model in models] for models in told] == [["movies"], []]
    order = ask("POST", "/v1/models/movies/unpin", json={}, headers={"authorization": f"Bearer {TOKEN}"})
    assert [model["name"] for model in order.json()["models"]] == ["movies"]


def test_document_lists_every_order(ask: Ask) -> None:
    paths = ask("GET", "/openapi.json").json()["paths"]
    assert paths.keys() == {"/v1/status", *(order.path for order in ORDERS.values())}
    pin = paths["/v1/models/{model}/pin"]["post"]
    assert "versions" in pin["requestBody"]["content"]["application/json"]["schema"]["properties"]
