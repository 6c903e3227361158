"""Changes over the HTTP endpoint: from the clients that a setting names, and from no others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from service.config import ServiceSettings
from tests.bundles.small import SmallBundle
from tests.units.service.changes.making import candidate, nearest
from tests.units.service.running import RunningService

TRAINER = "0123456789abcdef-of-the-trainer"
BOOKS = "0123456789abcdef-of-the-books"
READER = "0123456789abcdef-of-a-reader"
UPSERT = "/v1/models/movies/candidates/upsert"


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    file = tmp_path / "tokens"
    file.write_text(f"trainer {TRAINER}\nbooks {BOOKS} books\nreader {READER}\n")
    return file


def send(service: RunningService, token: str, body: Any, **options: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    return httpx.post(service.http + UPSERT, json=body, headers=headers, timeout=20, **options)


def test_clients_that_the_setting_names_change_what_is_served(
    write: Callable[..., SmallBundle], serve: Callable[..., RunningService], tokens: Path
) -> None:
    small = write()
    service = serve(tokens=tokens, changes_from="trainer,books", max_request_bytes=10_000)
    body = {"items": [candidate(5000)]}
    response = send(service, TRAINER, body)
    assert (response.status_code, response.json()) == (
        200,
        {"model": "movies", "version": 1, "sequence": 1, "changed": 1},
    )
    assert 5000 in nearest(service, small.vectors[:1], k=100).ids

    for token, status, message in [
        (READER, 403, "'reader' may not change models here; name its token or certificate"),
        (BOOKS, 403, "this token is for books"),
        ("", 401, "token"),
    ]:
        response = send(service, token, body)
        assert response.status_code == status
        assert message in response.json()["error"]["message"]
    response = send(service, TRAINER, {"items": [candidate(5000)] * 100})
    assert response.status_code == 413
    response = send(service, TRAINER, {"items": [{"id": 1}]})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "INVALID_ARGUMENT")
    assert service.current().changes == 1
    assert service.worker.dataplane.budget.held == 0


def test_streams_show_where_their_reader_continues(
    write: Callable[..., SmallBundle], serve: Callable[..., RunningService], tokens: Path
) -> None:
    write()
    service = serve(tokens=tokens, changes_from="trainer")
    body = {"items": [candidate(5000)], "stream": "catalog/0", "offset": 7, "from_offset": 2}
    assert send(service, TRAINER, body).json()["stream_offset"] == 7
    overlapping = {**body, "offset": 9, "from_offset": 6}
    result = send(service, TRAINER, overlapping).json()
    assert (result["is_repeated"], result["stream_offset"]) == (True, 7)
    backwards = {**body, "offset": 9, "from_offset": 9}
    response = send(service, TRAINER, backwards)
    assert (
        "from_offset is 9 with an offset of 9; a number below offset"
        in response.json()["error"]["message"]
    )

    headers = {"authorization": f"Bearer {TRAINER}"}
    url = f"{service.http}/v1/models/movies/changes"
    applied = httpx.get(url, headers=headers, timeout=20)
    assert applied.json() == {"model": "movies", "sequence": 1, "streams": {"catalog/0": 7}}
    headers = {"authorization": f"Bearer {READER}"}
    assert httpx.get(url, headers=headers, timeout=20).status_code == 403


def test_clients_without_tokens_are_sent_to_the_admin_api(
    write: Callable[..., SmallBundle], serve: Callable[..., RunningService]
) -> None:
    write()
    response = send(serve(), "", {"items": [candidate(5000)]})
    assert response.status_code == 403
    assert "send the change to the admin API" in response.json()["error"]["message"]


def test_the_setting_needs_clients_that_are_known(root: Path) -> None:
    with pytest.raises(ValidationError, match="give --tokens or --tls-client-ca"):
        ServiceSettings(root=root, changes_from=("trainer",))
