"""The five calls as plain ASGI before Starlette, whose routes cost more than many a call."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Coroutine, Mapping
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from service import logs
from service.engine.desk import Desk
from service.engine.requests import Call, Target
from service.errors import Cancelled, InvalidArgument, NotFound
from service.rest import schemas
from service.rest.bodies import UNREAD, Intake, IntakeFull, drain, read_body
from service.rest.guard import send_reply, text_of
from service.rest.schemas import Header, Headers, Reply
from service.wire.calls import REQUEST_ID, TIMEOUT_MS, TRACE_PARENT, call_of, request_id_of, timeout_s_of
from service.wire.decoding import decoded
from service.wire.failures import failure_of, log_failure
from service.wire.operations import OPERATIONS, Operation
from service.wire.timings import SERVER_TIMING, timing_of

HOT_PATH = re.compile(r"/v1/models/([^/:]+)(?:/versions/([^/:]+)|/labels/([^/:]+))?:([^/:]*)")
_LOG = logs.logger(__name__)
_CLOSE = ((b"connection", b"close"),)
_WATCH_AFTER_S = 0.005
"""A call that takes no longer is over before its caller's absence could be of use, and a task to watch it costs more
than many a call; whoever left meanwhile is found gone then."""


class MethodNotAllowed(InvalidArgument):
    """A call was asked for by another method than POST. HTTP has a number of its own for that."""


class HotCalls:
    """Answers the five calls itself and hands everything else on; no exception leaves a call."""

    def __init__(self, app: ASGIApp, desk: Desk) -> None:
        self._app = app
        self._desk = desk
        settings = desk.settings
        self._intake = Intake(settings.in_flight_max * settings.body_bytes_max, settings.retry_after_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        asked = HOT_PATH.fullmatch(scope["path"]) if scope["type"] == "http" else None
        if asked is None:
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        request_id = request_id_of(text_of(headers, REQUEST_ID), text_of(headers, TRACE_PARENT))
        name = asked[4] if asked[4] in OPERATIONS else "other"
        started, code, unread = time.perf_counter(), "OK", False
        phases: dict[str, float] = {}
        try:
            operation, target, protobuf = _understood(scope["method"], asked, headers)
            call = call_of(request_id, timeout_s_of(text_of(headers, TIMEOUT_MS)), time.monotonic())
            phases = call.phases
            body = await self._read(receive, headers, call)
            started = time.perf_counter()
            with self._desk.engine.enter(name, call.deadline):
                request, several = await decoded(len(body), schemas.read_request, operation, body, protobuf, target)
                self._took(call, name, "decode", started)
                answer = await self._ask(operation, request, call, receive)
                encoding = time.perf_counter()
                reply = self._written(operation, answer, several, headers)
                self._took(call, name, "encode", encoding)
                self._desk.answered(name, request.target, answer.model, protobuf, body)
        except Exception as problem:  # noqa: BLE001 - the door: nothing may leave it but an answer
            failure = failure_of(problem, request_id)
            code, unread = failure.code.value, isinstance(problem, UNREAD)
            log_failure(_LOG, name, failure, problem)
            if isinstance(problem, IntakeFull):
                self._desk.metrics.shed(name, problem.reason)
            status = 405 if isinstance(problem, MethodNotAllowed) else None
            more = ((b"allow", b"POST"),) if status else _CLOSE if unread else ()
            reply = schemas.failed(failure, schemas.wants_protobuf(headers), status, more)
        if phases:
            reply = Reply(reply.status, reply.content_type, reply.body, (*reply.headers, _timing(phases)))
        self._desk.metrics.answered("http", name, code, time.perf_counter() - started)
        await send_reply(reply, request_id, send, more=unread)
        if unread:  # the refusal is out; its sender reads it once the body is off its hands
            await drain(receive)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _read(self, receive: Receive, headers: Headers, call: Call) -> bytes:
        settings = self._desk.settings
        wait_s = settings.timeout_s
        if call.deadline is not None:
            wait_s = min(wait_s, call.deadline - time.monotonic())
        limit, rate = settings.body_bytes_max, settings.bytes_per_s_min
        return await read_body(receive, headers, limit, self._intake, wait_s, rate)

    async def _ask(self, operation: Operation, request: Any, call: Call, receive: Receive) -> Any:
        return await while_here(getattr(self._desk.engine, operation.name)(request, call), receive)

    def _written(self, operation: Operation, answer: Any, several: bool, headers: Headers) -> Reply:
        if schemas.wants_protobuf(headers):
            return schemas.written(operation.write_message(answer), None)
        return schemas.written(None, operation.write_json(answer, several))

    def _took(self, call: Call, name: str, phase: str, began: float) -> None:
        seconds = call.phases[phase] = time.perf_counter() - began
        self._desk.metrics.phase(name, phase, seconds)


async def while_here(work: Coroutine[Any, Any, Any], receive: Receive) -> Any:
    """Returns what `work` returns, and gives it up when the caller hangs up.

    Args:
      work: the engine's answer.
      receive: ASGI's source of messages; the body was read from it already.

    Raises:
      Cancelled: the caller hung up first.
    """
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine runs in one
    watch: asyncio.Task[None] | None = None
    working = True

    def begin() -> None:
        nonlocal watch
        watch = asyncio.create_task(_gone(receive))
        watch.add_done_callback(give_up)

    def give_up(_: asyncio.Task[None]) -> None:
        if working:
            task.cancel()

    later = asyncio.get_running_loop().call_later(_WATCH_AFTER_S, begin)
    try:
        return await work
    except asyncio.CancelledError:
        if watch is not None and watch.done():
            task.uncancel()
            raise Cancelled("the caller hung up") from None
        raise
    finally:
        working = False
        later.cancel()
        if watch is not None:
            watch.cancel()


def _understood(method: str, asked: re.Match[str], headers: Headers) -> tuple[Operation, Target, bool]:
    """Returns what is asked of which version, and whether as protobuf; refuses before the body is read."""
    model, version, label, name = asked.groups()
    if name not in OPERATIONS:
        raise NotFound(f"call {name[:40]!r} is not there; calls are {', '.join(OPERATIONS)}")
    if method != "POST":
        raise MethodNotAllowed(f"method {method[:20]} is not taken here; POST is")
    return OPERATIONS[name], schemas.target_of(model, version, label), schemas.is_protobuf(headers)


def _timing(phases: Mapping[str, float]) -> Header:
    return SERVER_TIMING.encode(), timing_of(phases).encode()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
