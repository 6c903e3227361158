"""Calls that are rejected before the application sees them, over a real connection."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from service.codec.stubs import embedding_service_pb2 as pb
from service.http.admission import Admission
from tests.bundles.small import write_small_bundle
from tests.units.service.http.clients import BODY, PROTOBUF, RETRIEVE, error_of, one_in_progress
from tests.units.service.running import RunningService


@pytest.fixture
def service(tmp_path: Path, small_towers: Path) -> Iterator[RunningService]:
    write_small_bundle(tmp_path / "root", small_towers)
    running = RunningService(tmp_path / "root", max_concurrent_requests=1, inline_max_us=0)
    yield running
    running.close()


TOKEN = "web-0123456789abcdef"


class Spy:
    """An application that remembers whether a request reached it."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.paths.append(scope["path"])


async def _sent(app: Admission, path: str, **headers: str) -> list[Message]:
    sent_messages: list[Message] = []

    async def send(message: Message) -> None:
        sent_messages.append(message)

    async def receive() -> Message:
        raise AssertionError("the body is not read")

    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": path, "headers": raw}
    await app(scope, receive, send)
    return sent_messages


def test_admission_overloaded_service_rejects_in_the_form_of_other_errors(
    service: RunningService,
) -> None:
    url = service.http + RETRIEVE
    with one_in_progress(service):
        rejected = httpx.post(url, json=BODY, headers={"x-request-id": "mine"})
        message = httpx.post(url, content=b"", headers=PROTOBUF)
    assert rejected.status_code == 429
    assert error_of(rejected)["code"] == "OVERLOADED"
    assert error_of(rejected)["request_id"] == "mine"
    assert int(rejected.headers["retry-after"]) >= 1
    assert pb.ErrorDetails.FromString(message.content).code == pb.ERROR_CODE_OVERLOADED
    labels = {"transport": "http", "call": "retrieve", "code": "OVERLOADED"}
    assert service.value("rowcast_requests_total", **labels) == 2
    reasons = {"call": "retrieve", "reason": "requests"}
    assert service.value("rowcast_rejected_requests_total", **reasons) == 2


def test_admission_overloaded_service_hands_on_only_what_it_must_not_judge(
    service: RunningService,
) -> None:
    spy = Spy()
    admission = Admission(spy, spy, service.dataplane)
    other_paths = ["/v1/models/movies:unknown", "/v1/models", f"{RETRIEVE}/more"]
    odd = [
        {"x_request_timeout_ms": "soon"},
        {"transfer_encoding": "chunked"},
        {"content_length": str(1 << 30)},
    ]
    with one_in_progress(service):
        for path in other_paths:
            assert not asyncio.run(_sent(admission, path))
        for headers in odd:
            assert not asyncio.run(_sent(admission, RETRIEVE, **headers))
        assert len(spy.paths) == len(other_paths) + len(odd)

        assert len(asyncio.run(_sent(admission, RETRIEVE))) == 2
        assert len(asyncio.run(_sent(admission, RETRIEVE.replace(":", "/versions/1:")))) == 2
    assert len(spy.paths) == len(other_paths) + len(odd)


def test_admission_with_tokens_rejects_a_bad_token_as_unauthenticated(
    tmp_path: Path, small_towers: Path
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"web {TOKEN}\n")
    write_small_bundle(tmp_path / "root", small_towers)
    limits = {"max_concurrent_requests": 1, "inline_max_us": 0}
    running = RunningService(tmp_path / "root", tokens=tokens, **limits)
    token_header = {"authorization": f"Bearer {TOKEN}"}
    try:
        with one_in_progress(running, headers=token_header):
            url = running.http + RETRIEVE
            assert httpx.post(url, json=BODY).status_code == 401
            assert httpx.post(url, json=BODY, headers=token_header).status_code == 429
    finally:
        running.close()


def test_admission_repeated_rejections_differ_in_their_ids_alone(service: RunningService) -> None:
    url = service.http + RETRIEVE
    ids = ["a", "first-id", "other-id", "the-id-of-a-third", "first-id", "z"]
    with one_in_progress(service), httpx.Client() as client:
        for headers in ({}, PROTOBUF):
            rejections = [
                client.post(url, content=b"", headers={**headers, "x-request-id": request_id})
                for request_id in ids
            ]
            assert {rejection.status_code for rejection in rejections} == {429}
            assert [rejection.headers["x-request-id"] for rejection in rejections] == ids
            assert len({rejection.headers["content-type"] for rejection in rejections}) == 1
            if headers:
                details = [
                    pb.ErrorDetails.FromString(rejection.content) for rejection in rejections
                ]
                assert [detail.request_id for detail in details] == ids
                assert len({(detail.code, detail.message) for detail in details}) == 1
            else:
                errors = [error_of(rejection) for rejection in rejections]
                assert [error.pop("request_id") for error in errors] == ids
                assert all(error == errors[0] for error in errors)
        without = [client.post(url, json=BODY) for _ in range(3)]
        assert {rejection.status_code for rejection in without} == {429}
        assert len({rejection.headers["x-request-id"] for rejection in without}) == 3
    count = 2 * len(ids) + len(without)
    labels = {"transport": "http", "call": "retrieve", "model": "movies", "code": "OVERLOADED"}
    assert service.value("rowcast_requests_total", **labels) == count
    assert (
        service.value("rowcast_rejected_requests_total", model="movies", reason="requests") == count
    )
    assert httpx.post(url, json=BODY).status_code == 200


def test_admission_repeated_rejection_is_only_for_requests_that_do_not_differ(
    service: RunningService,
) -> None:
    url = service.http + RETRIEVE
    with one_in_progress(service), httpx.Client() as client:
        for _ in range(2):
            assert client.post(url, json=BODY).status_code == 429
            form = {"content-type": "text/csv"}
            assert client.post(url, content=b"", headers=form).status_code == 429
            assert client.get(url).status_code == 405
            late = {"x-request-timeout-ms": "soon"}
            assert client.post(url, json=BODY, headers=late).status_code == 400
            films_url = url.replace("movies", "films")
            assert client.post(films_url, json=BODY).status_code == 429
    rejected = "rowcast_rejected_requests_total"
    assert service.value(rejected, model="movies") == 4
    assert service.value(rejected, model="") == 2


def test_admission_access_log_has_a_line_for_each_rejection(
    tmp_path: Path, small_towers: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_small_bundle(tmp_path / "root", small_towers)
    limits = {"max_concurrent_requests": 1, "inline_max_us": 0}
    running = RunningService(tmp_path / "root", access_log=True, **limits)
    try:
        with one_in_progress(running), caplog.at_level("INFO", "rowcast"):
            for _ in range(3):
                assert httpx.post(running.http + RETRIEVE, json=BODY).status_code == 429
            lines = [record for record in caplog.records if record.message == "request"]
            assert len(lines) == 3
    finally:
        running.close()
