"""What surrounds every request that Starlette answers: its request id, and no exception that leaves it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import logs
from service.engine.desk import Desk
from service.rest import schemas
from service.rest.heads import combined
from service.rest.schemas import Headers, Reply
from service.wire.calls import REQUEST_ID, TRACE_PARENT, request_id_of
from service.wire.failures import failure_of, log_failure

_LOG = logs.logger(__name__)


class Guard:
    """Adds the request id to what Starlette answers, counts it, and tells its bugs as any other failure.

    Routes leave `call` and `code` in the request's state, where they are not `other` and `OK`.
    """

    def __init__(self, app: ASGIApp, desk: Desk) -> None:
        self._app = app
        self._desk = desk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = combined(scope["headers"])
        request_id = request_id_of(text_of(headers, REQUEST_ID), text_of(headers, TRACE_PARENT))
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        started, begun = time.perf_counter(), False

        async def send_with_id(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                self._count(state, started)
                message["headers"] = [*message.get("headers", []), (REQUEST_ID.encode(), request_id.encode())]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as problem:  # noqa: BLE001 - the door: nothing may leave it but an answer
            failure = failure_of(problem, request_id)
            state["code"] = failure.code.value
            log_failure(_LOG, state.get("call", "other"), failure, problem)
            if not begun:
                self._count(state, started)
                await send_reply(schemas.failed(failure, protobuf=False), request_id, send)

    def _count(self, state: Mapping[str, Any], started: float) -> None:
        """Counts an answer before it is sent, so that whoever has it finds it counted."""
        seconds = time.perf_counter() - started
        self._desk.metrics.answered("http", state.get("call", "other"), state.get("code", "OK"), seconds)


def text_of(headers: Headers, name: str) -> str | None:
    """Returns a header's text; None where it is not sent."""
    value = headers.get(name.encode())
    return None if value is None else value.decode("latin-1")


async def send_reply(reply: Reply, request_id: str, send: Send, more: bool = False) -> None:
    """Sends a whole reply; `more`: its end is not told yet."""
    await send({"type": "http.response.start", "status": reply.status, "headers": schemas.head_of(reply, request_id)})
    await send({"type": "http.response.body", "body": reply.body, "more_body": more})
