"""Pages (metrics, descriptions, documents) do not take the service from calls."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from service.http.pages import PAGES_MAX
from tests.e2e.process import until
from tests.units.service.http.clients import BODY, RETRIEVE, connected, error_of, received
from tests.units.service.running import RunningService, log_lines

ASSET = "/docs/assets/swagger-ui-bundle.js"


def test_pages_that_are_not_read_leave_calls_alone_and_end_in_time(
    serve: Callable[..., RunningService], write: Callable[..., Any]
) -> None:
    write()
    service = serve(body_timeout_s=4)
    requests = f"GET {ASSET} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode() * 20
    with ExitStack() as opened, log_lines() as lines:
        for _ in range(PAGES_MAX):
            connection = opened.enter_context(connected(service))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(requests)
        responses: list[httpx.Response] = []

        def is_rejected() -> bool:
            responses.append(httpx.get(service.http + "/metrics"))
            return responses[-1].status_code == 429

        until(is_rejected)
        assert error_of(responses[-1])["code"] == "OVERLOADED"
        assert responses[-1].headers["retry-after"] == "1"
        assert httpx.get(service.http + "/readyz").status_code == 200
        assert httpx.post(service.http + RETRIEVE, json=BODY).status_code == 200

        until(lambda: httpx.get(service.http + "/metrics").status_code == 200)
        assert "CANCELLED" in lines.getvalue()


def test_foreign_host_is_rejected_except_by_probes(
    serve: Callable[..., RunningService], write: Callable[..., Any]
) -> None:
    write()
    service = serve()
    foreign = {"host": "example.com"}
    response = httpx.post(service.http + RETRIEVE, json=BODY, headers=foreign)
    assert (response.status_code, error_of(response)["code"]) == (403, "PERMISSION_DENIED")
    assert httpx.get(service.http + "/v1/models", headers=foreign).status_code == 403
    assert httpx.get(service.http + "/readyz", headers=foreign).status_code == 200
    allowed = serve(allowed_hosts=("example.com",))
    assert httpx.post(allowed.http + RETRIEVE, json=BODY, headers=foreign).status_code == 200


@pytest.mark.parametrize("path", ["/metrics", "/livez"])
def test_page_requested_with_a_body_of_unknown_size_closes_the_connection(
    path: str, serve: Callable[..., RunningService], write: Callable[..., Any]
) -> None:
    write()
    with connected(serve()) as connection:
        lines = (f"GET {path} HTTP/1.1", "host: localhost", "transfer-encoding: chunked", "", "")
        connection.sendall("\r\n".join(lines).encode())
        assert b"\r\nconnection: close\r\n" in received(connection)
