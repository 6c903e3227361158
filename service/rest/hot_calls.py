"""The five calls, from a request's head to its answer without a task: driven by the connection that they come on.

A body that is large or gzip is decoded in a thread, and its call has a task until then. Reasons and figures in
docs/adr/0019.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any, Protocol

from service import logs
from service.engine.admission import Permit
from service.engine.desk import Desk
from service.engine.jobs import Job
from service.engine.requests import Call
from service.errors import Cancelled, InvalidArgument, PermissionDenied, ServiceError
from service.rest import schemas
from service.rest.answers import CLOSE, Lines
from service.rest.bodies import (
    DRAIN_BYTES_MAX,
    DRAIN_S_MAX,
    UNREAD,
    Arrival,
    Intake,
    IntakeFull,
    left_early,
    plain_of,
    too_slow,
)
from service.rest.doorkeeper import refusal_headers
from service.rest.heads import Heads
from service.rest.paths import Asked
from service.rest.refusals import Refusals
from service.rest.schemas import Header, Headers, Reply
from service.security.callers import Caller, enter, require_permission
from service.wire.calls import REQUEST_ID, TIMEOUT_MS, TRACE_PARENT, request_id_of, timeout_s_of
from service.wire.decoding import AT_ONCE_BYTES_MAX, decoded
from service.wire.failures import Failure, failure_of, log_failure
from service.wire.timings import SERVER_TIMING, timing_of

_LOG = logs.logger(__name__)
_REQUEST_ID, _TRACE_PARENT, _TIMEOUT_MS = REQUEST_ID.encode(), TRACE_PARENT.encode(), TIMEOUT_MS.encode()
_SERVER_TIMING = SERVER_TIMING.encode()
_LATER_S = 0.001
"""Behind the time that is to be over: timers may be early by as much."""


class MethodNotAllowed(InvalidArgument):
    """A call was asked for by another method than POST. HTTP has a number of its own for that."""


class Line(Protocol):
    """The connection of a call, as the call knows it."""

    caller: Caller | None
    """Whom its certificate names."""

    def answer(self, call: HotCall, reply: Reply, request_id: str) -> None:
        """Sends the reply to a call, which is over then unless it drains."""

    def ask_for_body(self) -> None:
        """Tells a caller who waits for that to send its body."""

    def over(self, call: HotCall) -> None:
        """Tells that a call is over that drained."""


class HotCalls:
    """What the calls of one door share."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.refusals, self.heads, self.lines = Refusals(desk), Heads(), Lines()
        self.tokens = desk.guards.tokens
        settings = desk.settings
        self.intake = Intake(settings.intake_bytes_max, settings.retry_after_s)


class HotCall:
    """One call; to its connection a request and its response, as uvicorn's own are. No exception leaves it.

    Attributes:
      calls: what it shares with others.
      asked: as its URL tells.
      method: of the request.
      keep_alive: whether the connection is kept behind the answer.
      expects: whether the caller waits until its body is asked for.
      response_started: whether it is answered.
      response_complete: whether it is over; what still comes of the request is thrown away.
      more_body: whether the request has not ended.
      draining: whether the rest of the request is awaited behind the answer.
    """

    __slots__ = (
        *("asked", "calls", "draining", "expects", "keep_alive", "method", "more_body"),
        *("response_complete", "response_started"),
        *("_ahead", "_arrival", "_began", "_body", "_call", "_context", "_headers", "_late"),
        *(
            "_line",
            "_name",
            "_permit",
            "_phases",
            "_protobuf",
            "_reading",
            "_request_id",
            "_rest_bytes",
            "_room",
            "_several",
            "_started",
        ),
        *("_target", "_waiting"),
    )

    def __init__(
        self,
        calls: HotCalls,
        line: Line,
        asked: Asked,
        method: bytes,
        headers: Headers,
        keep_alive: bool,
        expects: bool,
        room: bool = False,
    ) -> None:
        """Takes a request whose head is here.

        Args:
          calls: what it shares with others.
          line: that it came on.
          asked: as its URL tells.
          method: of HTTP.
          headers: names in lower case.
          keep_alive, expects: as the attributes.
          room: whether there was found to be room for it.
        """
        self.method, self.keep_alive, self.expects = method, keep_alive, expects
        self.response_started = self.response_complete = self.draining = False
        self.more_body = True
        self.calls, self._line, self.asked, self._headers = calls, line, asked, headers
        self._name, self._room = asked.counted_as, room
        self._ahead: list[bytes] = []
        self._phases: dict[str, float] = {}
        self._rest_bytes = 0
        self._arrival: Arrival | None = None
        self._context: Context | None = None
        self._late: asyncio.TimerHandle | None = None
        self._permit: Permit | None = None
        self._reading: asyncio.Task[None] | None = None
        self._waiting: Job[Any, Any] | None = None

    def begin(self) -> None:
        """Takes the request up: it is the first of its connection that is not answered."""
        self._started = time.perf_counter()
        calls, headers = self.calls, self._headers
        self._request_id = request_id_of(_text(headers.get(_REQUEST_ID)), _text(headers.get(_TRACE_PARENT)))
        try:
            refusals = calls.refusals
            refused = None if self._room else refusals.of_call(self.asked, self.method, headers, self._request_id)
            if refused is not None:
                self._line.answer(self, refused, self._request_id)
                return
            caller = self._line.caller
            if calls.tokens is not None:
                caller = calls.tokens.caller(headers.get(b"authorization"))
        except Exception as problem:  # noqa: BLE001 - the door: nothing may leave it but an answer
            self._turn_away(problem)
            return
        if caller is not None:
            self._context = copy_context()
            self._context.run(enter, caller)
        self._run(self._begin)

    def take(self, chunk: bytes) -> None:
        """Takes the next bytes of the body."""
        if self._arrival is not None:
            self._run(self._take, chunk)
        elif not self.response_started:
            self._ahead.append(chunk)
        else:
            self._rest_bytes += len(chunk)
            if self._rest_bytes >= DRAIN_BYTES_MAX:
                self._drained()

    def complete(self) -> None:
        """Takes the end of the request."""
        self.more_body = False
        if self._arrival is not None:
            self._run(self._whole)
        elif self.draining:
            self._drained()

    def await_body(self) -> None:
        """Holds the body to its time; to be called where nothing more of it is here."""
        if self._arrival is not None and self._late is None:
            self._run(self._watch)

    def gone(self) -> None:
        """Ends the call: its connection is gone."""
        self._quick()
        if self._waiting is not None:
            self._waiting.give_up()
            self._waiting = None
        elif self._reading is not None:
            self._reading.cancel()
        if not self.response_started:
            self.response_started = True
            self._run(self._failed, Cancelled("the caller hung up") if self._arrival is None else left_early())

    def _run(self, step: Callable[..., Any], *args: Any) -> None:
        """Takes a step in the name of the caller, where that is known."""
        if self._context is None:
            step(*args)
        else:
            self._context.run(step, *args)

    def _begin(self) -> None:
        headers, asked, settings = self._headers, self.asked, self.calls.desk.settings
        try:
            require_permission(asked.model)
        except PermissionDenied as problem:
            self._turn_away(problem)
            return
        try:
            asked.operation  # noqa: B018 - there is one
            if self.method != b"POST":
                raise MethodNotAllowed(f"method {self.method.decode()[:20]} is not taken here; POST is")
            self._target, self._protobuf = asked.target, schemas.is_protobuf(headers)
            self._began = time.monotonic()
            timeout_s = timeout_s_of(_text(headers.get(_TIMEOUT_MS)))
            self._call = Call(self._request_id, None if timeout_s is None else self._began + timeout_s, self._phases)
            self._arrival = Arrival(headers, settings.body_bytes_max, self.calls.intake)
        except Exception as problem:  # noqa: BLE001 - as above
            self._fail(problem)
            return
        if self.expects:
            self._line.ask_for_body()
        for chunk in self._ahead:
            self._take(chunk)
        if not self.more_body:
            self._whole()

    def _take(self, chunk: bytes) -> None:
        if self._arrival is not None:
            try:
                self._arrival.take(chunk)
            except ServiceError as problem:
                self._fail(problem)

    def _whole(self) -> None:
        """Has the body read, in a thread if it is large."""
        arrival, self._arrival = self._arrival, None
        if arrival is None:
            return
        self._quick()
        body = arrival.whole()
        if arrival.zipped or len(body) > AT_ONCE_BYTES_MAX:
            self._reading = asyncio.get_running_loop().create_task(self._read(body, arrival))
            return
        try:
            self._enter()
            self._ask(body, schemas.read_request(self.asked.operation, body, self._protobuf, self._target))
        except Exception as problem:  # noqa: BLE001 - as above
            self._fail(problem)

    async def _read(self, body: bytes, arrival: Arrival) -> None:
        try:
            body = await plain_of(body, arrival)
            self._enter()
            read, operation = schemas.read_request, self.asked.operation
            self._ask(body, await decoded(len(body), read, operation, body, self._protobuf, self._target))
        except Exception as problem:  # noqa: BLE001 - as above
            self._fail(problem)

    def _enter(self) -> None:
        self._started = time.perf_counter()
        self._permit = self.calls.desk.engine.enter(self._name, self._call.deadline)

    def _ask(self, body: bytes, asked: tuple[Any, bool]) -> None:
        self._took("decode", self._started)
        request, self._several = asked
        self._body, self._target = body, request.target
        told = self._told if self._context is None else self._told_in_context
        self._waiting = self.calls.desk.engine.start(self._name, request, self._call, told)

    def _told_in_context(self, outcome: Any) -> None:
        self._run(self._told, outcome)

    def _told(self, outcome: Any) -> None:
        """Sends the answer, or why there is none."""
        self._waiting = None  # which holds on to the version that answered, and a connection to its last call
        if isinstance(outcome, ServiceError):
            self._fail(outcome)
            return
        operation = self.asked.operation
        try:
            began = time.perf_counter()
            if schemas.wants_protobuf(self._headers):
                reply = schemas.written(operation.write_message(outcome), None)
            else:
                reply = schemas.written(None, operation.write_json(outcome, self._several))
            self._took("encode", began)
            self.calls.desk.answered(self._name, self._target, outcome.model, self._protobuf, self._body)
            self._body = b""
        except Exception as problem:  # noqa: BLE001 - as above
            self._fail(problem)
            return
        self._answered("OK")
        self._send(reply)

    def _turn_away(self, problem: Exception) -> None:
        """Refuses a caller for who it is, whatever it asks."""
        self._name = "other"
        self._fail(problem, refusal_headers(problem), unread=True)

    def _fail(self, problem: Exception, more: tuple[Header, ...] = (), unread: bool = False) -> None:
        """Sends why there is no answer; `unread`: reads the rest of the body, so that its sender gets to read that."""
        status = None
        if isinstance(problem, MethodNotAllowed):
            status, more = 405, ((b"allow", b"POST"),)
        elif isinstance(problem, UNREAD):
            more, unread = (CLOSE,), True
        failure = self._failed(problem)
        if unread:
            self.keep_alive = False
            if self.more_body:
                self.draining = True
                self._late = asyncio.get_running_loop().call_later(DRAIN_S_MAX, self._drained)
        self._send(schemas.failed(failure, schemas.wants_protobuf(self._headers), status, more))

    def _failed(self, problem: Exception) -> Failure:
        """Ends the call without an answer: counts it and tells the log."""
        self._quick()
        if self._arrival is not None:
            self._arrival.leave()
            self._arrival = None
        failure = failure_of(problem, self._request_id)
        log_failure(_LOG, self._name, failure, problem)
        desk = self.calls.desk
        if isinstance(problem, IntakeFull):
            desk.metrics.shed(self._name, problem.reason)
        self._answered(failure.code.value)
        return failure

    def _answered(self, code: str) -> None:
        """Counts the call before its answer is sent, so that whoever has that finds it counted."""
        if self._permit is not None:
            self._permit.release()
        self.calls.desk.metrics.answered("http", self._name, code, time.perf_counter() - self._started)

    def _send(self, reply: Reply) -> None:
        if self._phases:
            reply = reply._replace(headers=(*reply.headers, (_SERVER_TIMING, timing_of(self._phases).encode())))
        self._line.answer(self, reply, self._request_id)

    def _took(self, phase: str, began: float) -> None:
        seconds = self._phases[phase] = time.perf_counter() - began
        self.calls.desk.metrics.phase(self._name, phase, seconds)

    def _watch(self) -> None:
        """Refuses a body that is late, or looks again when it will be."""
        settings, now = self.calls.desk.settings, time.monotonic()
        end, deadline = self._began + settings.timeout_s, self._call.deadline
        if deadline is not None:
            end = min(end, deadline)
        if self._arrival is not None:
            due = self._began + self._arrival.due_s(settings.bytes_per_s_min)
            if now >= min(end, due):
                self._fail(too_slow(None if end <= due else settings.bytes_per_s_min))
            else:
                wait_s = min(end, due) - now + _LATER_S
                self._late = asyncio.get_running_loop().call_later(wait_s, self._run, self._watch)

    def _drained(self) -> None:
        self._quick()
        self.draining = False
        self._line.over(self)

    def _quick(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def is_silent(cycle: object) -> bool:
    """Tells whether this is one of the five calls, and nothing of its answer is out."""
    return isinstance(cycle, HotCall) and not cycle.response_started


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")
