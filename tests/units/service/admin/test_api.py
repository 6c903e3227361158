"""Requests of the admin API: who is accepted, what is rejected, what the responses are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.admin.api import MAX_BODY_BYTES
from service.admin.commands import COMMANDS
from service.versions.state_file import NAME
from tests.bundles.small import write_small_bundle
from tests.e2e.process import WAIT_S
from tests.units.service.running import RunningService, log_lines

TOKEN = "0123456789abcdef-operator"
MOVIES_TOKEN = "0123456789abcdef-of-movies"
BOOKS_TOKEN = "0123456789abcdef-of-books"
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, small_towers: Path) -> Path:
    root = tmp_path_factory.mktemp("bundles")
    write_small_bundle(root, small_towers)
    return root


@pytest.fixture(scope="module")
def http(root: Path) -> Iterator[httpx.Client]:
    service = RunningService(root)
    with httpx.Client(base_url=service.admin, timeout=WAIT_S, verify=False) as http:
        yield http
    service.close()


@pytest.fixture(scope="module")
def guarded(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A service with operators."""
    directory = tmp_path_factory.mktemp("operators")
    file = directory / "tokens"
    file.write_text(f"me {TOKEN}\nmovies {MOVIES_TOKEN} movies\nbooks {BOOKS_TOKEN} books\n")
    service = RunningService(root, admin_tokens=file, state_file=directory / "state")
    with httpx.Client(base_url=service.admin, timeout=WAIT_S, verify=False) as http:
        yield http
    service.close()


MOVIES = "/v1/models/movies"
REFUSED: list[tuple[str, str, dict[str, Any], int, str]] = [
    ("POST", f"{MOVIES}/pin", {"json": {}}, 400, "versions"),
    ("POST", f"{MOVIES}/pin", {"json": {"versions": ["1.0"]}}, 400, "versions.0"),
    ("POST", f"{MOVIES}/pin", {"json": {"versions": [2**63]}}, 400, "versions.0"),
    ("POST", f"{MOVIES}/pin", {"json": {"versions": [1], "more": 1}}, 400, "more"),
    ("POST", f"{MOVIES}/pin", {"json": {"versions": [7]}}, 404, "version 7"),
    ("POST", f"{MOVIES}/pin", {"headers": JSON}, 400, "versions"),
    (
        "POST",
        f"{MOVIES}/label",
        {"json": {"label": "a b", "version": 1}},
        400,
        "'a b': letters, digits",
    ),
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
    ("POST", "/v1/drain", {"content": b"[" * 60_000, "headers": JSON}, 400, "depth"),
    ("POST", "/v1/drain", {"content": b"{}"}, 400, "content-type"),
    ("POST", "/v1/drain", {"data": {"a": "b"}}, 400, "content-type"),
    ("POST", "/v1/drain", {"json": {"a": "x" * MAX_BODY_BYTES}}, 413, str(MAX_BODY_BYTES)),
    ("GET", "/v1/drain", {}, 404, "does not exist"),
    ("POST", "/v1/drain?force=1", {"json": {}}, 400, "'force'"),
    ("GET", "/v1/status?model=movies", {}, 400, "'model'"),
    ("GET", "/v1/status", {"headers": {"x-request-id": "a b"}}, 400, "x-request-id is 'a b'"),
]


@pytest.mark.parametrize(("method", "path", "options", "status", "words"), REFUSED)
def test_invalid_request_is_rejected_and_changes_nothing(
    http: httpx.Client, root: Path, method: str, path: str, options: Any, status: int, words: str
) -> None:
    response = http.request(method, path, **options)
    assert response.status_code == status
    error = response.json()["error"]
    assert words in error["message"]
    assert error["request_id"] == response.headers["x-request-id"]
    assert not (root / NAME).exists()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8090", 200),
        ("[::1]:8090", 200),
        ("rebound.example:8090", 403),
        ("127.0.0.1.rebound.example", 403),
    ],
)
def test_without_tokens_only_names_of_this_machine_are_accepted(
    http: httpx.Client, host: str, status: int
) -> None:
    for path in ("/v1/status", "/openapi.json"):
        assert http.get(path, headers={"host": host}).status_code == status


@pytest.mark.parametrize(
    ("token", "path", "status", "names"),
    [
        ("", "/v1/drain", 401, None),
        ("wrong-but-long-enough", "/v1/drain", 401, None),
        ("", "/v1/nothing", 401, None),
        (MOVIES_TOKEN, "/v1/drain", 403, None),
        (BOOKS_TOKEN, f"{MOVIES}/unpin", 403, None),
        (BOOKS_TOKEN, f"{MOVIES}/deny/add", 403, None),
        (MOVIES_TOKEN, "/v1/report", 403, None),
        (MOVIES_TOKEN, f"{MOVIES}/unpin", 200, ["movies"]),
        (MOVIES_TOKEN, "/v1/status", 200, ["movies"]),
        (BOOKS_TOKEN, "/v1/status", 200, []),
        (TOKEN, "/v1/undrain", 200, ["movies"]),
    ],
)
def test_token_decides_what_an_operator_may_do_and_see(
    guarded: httpx.Client, token: str, path: str, status: int, names: list[str] | None
) -> None:
    headers = {"host": "service.example"}
    if token:
        headers["authorization"] = f"Bearer {token}"
    options: dict[str, Any] = {"json": {}}
    method = "POST"
    if path in {"/v1/status", "/v1/report"}:
        options = {}
        method = "GET"
    response = guarded.request(method, path, headers=headers, **options)
    assert response.status_code == status
    if names is not None:
        assert [model["name"] for model in response.json()["models"]] == names


def test_openapi_document_describes_every_command(http: httpx.Client) -> None:
    paths = http.get("/openapi.json").json()["paths"]
    ends = {path.removeprefix("/v1/").removeprefix("models/{model}/") for path in paths}
    assert {*COMMANDS, "deny", "status", "report", "topology"} <= ends
    assert "422" not in paths["/v1/models/{model}/pin"]["post"]["responses"]


COMMANDS_SENT: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("/v1/log-level", {"level": "error"}, {"command": "log-level", "level": "error"}),
    ("/v1/drain", {}, {"command": "drain"}),
    ("/v1/undrain", {}, {"command": "undrain"}),
    (f"{MOVIES}/pin", {"versions": [1]}, {"command": "pin", "model": "movies", "versions": [1]}),
    (f"{MOVIES}/unpin", {}, {"command": "unpin", "model": "movies"}),
    (f"{MOVIES}/deny/add", {"ids": [1, 2]}, {"command": "deny/add", "ids": 2}),
    (f"{MOVIES}/candidates/delete", {"items": [{"id": 1}]}, {"command": "candidates/delete"}),
    (f"{MOVIES}/changes/backup?path=PATH", {}, {"command": "changes/backup", "model": "movies"}),
    ("/v1/log-level", {"level": None}, {"command": "log-level"}),
]


def test_every_command_is_logged_with_who_gave_it_at_every_log_level(
    guarded: httpx.Client, tmp_path: Path
) -> None:
    headers = {"authorization": f"Bearer {TOKEN}"}
    with log_lines() as lines:
        for path, body, _ in COMMANDS_SENT:
            url = path.replace("PATH", f"{tmp_path}/copy")
            guarded.post(url, json=body, headers=headers).raise_for_status()
        refused = guarded.post(f"{MOVIES}/pin", json={}, headers=headers)
        assert refused.status_code == 400
    logged = [json.loads(line) for line in lines.getvalue().splitlines()]
    applied = [line for line in logged if line["event"] == "command_applied"]
    assert [line["principal"] for line in applied] == ["me"] * len(COMMANDS_SENT)
    for line, (_, _, expected) in zip(applied, COMMANDS_SENT, strict=True):
        assert expected.items() <= line.items()
