"""Calls that there is no room for, answered by the connection they came on.

That costs a fraction of refusing them in the application, so that those who flood a service take little from those
whom it answers; figures in docs/adr/0014 and 0026. A call whose head was seen before is not parsed, and what it is told
is ready but for its id.
"""

from __future__ import annotations

from functools import lru_cache
from http import HTTPStatus
from typing import NamedTuple

from service import logs
from service.engine.desk import Desk
from service.errors import InvalidArgument, Overloaded, ServiceError
from service.metrics import Metrics
from service.rest import schemas
from service.rest.answers import CLOSE, whole
from service.rest.guard import text_of
from service.rest.heads import Call
from service.rest.paths import Asked
from service.rest.schemas import Headers, Reply
from service.wire.calls import REQUEST_ID, TIMEOUT_MS, TRACE_PARENT, new_request_id, request_id_of, timeout_s_of
from service.wire.failures import failure_of, log_failure
from service.wire.operations import OPERATIONS

_LOG = logs.logger(__name__)
_CODE = Overloaded.code.value
_KEPT_MAX = 64
_TIMEOUT_MS = TIMEOUT_MS.encode()
_SOME_ID = "0" * 31 + "-"
"""As long as a new id, and like no other text."""


class _Ready(NamedTuple):
    """A response without its id."""

    refused: Overloaded
    before: bytes
    parts: list[bytes]


class Refusals:
    """What a connection asks before it takes a request up."""

    def __init__(self, desk: Desk) -> None:
        """Refuses what the desk's engine has no room for."""
        self._engine, self._metrics = desk.engine, desk.metrics
        self._ready: dict[bool, _Ready] = {}

    def of_whole(self, call: Call, before: bytes) -> bytes | None:
        """Returns the whole response to a call that is refused; None: it is not, as far as its head tells.

        Args:
          call: all of it.
          before: header lines that every response has.
        """
        head = call.head
        at = head.timeout_at
        refused = self._refused(head.asked, None if at is None else call.values[at])
        if refused is None:
            return None
        if head.names_itself:
            headers = call.headers
            request_id = request_id_of(text_of(headers, REQUEST_ID), text_of(headers, TRACE_PARENT))
            if len(request_id) != len(_SOME_ID):
                return self._response(refused, request_id, before, head.protobuf)
        else:
            request_id = new_request_id()
        ready = self._ready.get(head.protobuf)
        if ready is None or ready.refused is not refused or ready.before != before:
            parts = self._response(refused, _SOME_ID, before, head.protobuf).split(_SOME_ID.encode())
            ready = self._ready[head.protobuf] = _Ready(refused, before, parts)
        return request_id.encode().join(ready.parts)

    def of_call(self, asked: Asked, method: bytes, headers: Headers, request_id: str) -> Reply | None:
        """Returns the reply to a call that is refused; None: it is not, as far as its head tells."""
        refused = self._refused(asked, headers.get(_TIMEOUT_MS)) if method == b"POST" else None
        return None if refused is None else _reply(refused, request_id, schemas.wants_protobuf(headers))

    def _response(self, refused: Overloaded, request_id: str, before: bytes, protobuf: bool) -> bytes:
        return whole(_reply(refused, request_id, protobuf), request_id, before)

    def _refused(self, asked: Asked, timeout_ms: bytes | None) -> Overloaded | None:
        """Returns why a call is refused, and counts it."""
        name = asked.name
        if name not in OPERATIONS:
            return None
        try:
            timeout_s = None if timeout_ms is None else _timeout_s_of(timeout_ms)
        except InvalidArgument:
            return None
        refused = self._engine.refusal(name, timeout_s)
        if refused is not None:
            self._metrics.answered("http", name, _CODE, 0.0)
        return refused


@lru_cache(_KEPT_MAX)
def _timeout_s_of(told: bytes) -> float | None:
    return timeout_s_of(told.decode("latin-1"))


def refused_whole(metrics: Metrics, status: HTTPStatus, problem: ServiceError) -> bytes:
    """Returns the response of a connection that ends before it asks a call; counted and told to the log."""
    failure = failure_of(problem, new_request_id())
    log_failure(_LOG, "other", failure, problem)
    metrics.answered("http", "other", failure.code.value, 0.0)
    return whole(schemas.failed(failure, protobuf=False, status=status, headers=(CLOSE,)), failure.request_id)


def _reply(refused: Overloaded, request_id: str, protobuf: bool) -> Reply:
    return schemas.failed(failure_of(refused, request_id), protobuf)
