"""Calls that there is no room for, answered as soon as their headers are there.

That costs a fifth of refusing them in the application, so that those who flood a service take little from those whom it
answers; figures in docs/adr/0014.
"""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import Any

from service.engine.desk import Desk
from service.errors import InvalidArgument
from service.rest import schemas
from service.rest.guard import text_of
from service.rest.hot_calls import HOT_PATH
from service.rest.schemas import Header, Reply
from service.wire.calls import REQUEST_ID, TIMEOUT_MS, TRACE_PARENT, request_id_of, timeout_s_of
from service.wire.failures import failure_of
from service.wire.operations import OPERATIONS

_CLOSE = (b"connection", b"close")


class Refusals:
    """What a connection asks before it makes a task of a request."""

    def __init__(self, desk: Desk) -> None:
        """Refuses what the desk's engine has no room for."""
        self._engine, self._metrics = desk.engine, desk.metrics

    def refusal(self, scope: Any, more: tuple[Header, ...], keep_alive: bool) -> bytes | None:
        """Returns the whole response to a call that is refused; None: it is not, as far as its headers tell.

        Args:
          scope: ASGI's, of the request.
          more: headers that every response has.
          keep_alive: whether the connection stays open behind it.
        """
        if not self._engine.crowded:
            self._engine.comes()
            return None
        refused = self._refused(scope, more, keep_alive)
        if refused is None:
            self._engine.comes()
        return refused

    def _refused(self, scope: Any, more: tuple[Header, ...], keep_alive: bool) -> bytes | None:
        if scope["method"] != "POST":
            return None
        asked = HOT_PATH.fullmatch(scope["path"])
        name = asked.groups()[-1] if asked is not None else ""
        if name not in OPERATIONS:
            return None
        headers = dict(scope["headers"])
        try:
            timeout_s = timeout_s_of(text_of(headers, TIMEOUT_MS))
        except InvalidArgument:
            return None
        refused = self._engine.refusal(name, None if timeout_s is None else time.monotonic() + timeout_s)
        if refused is None:
            return None
        request_id = request_id_of(text_of(headers, REQUEST_ID), text_of(headers, TRACE_PARENT))
        failure = failure_of(refused, request_id)
        self._metrics.answered("http", name, failure.code.value, 0.0)
        more = more if keep_alive else (*more, _CLOSE)
        return whole(schemas.failed(failure, schemas.wants_protobuf(headers), headers=more), request_id)


def whole(reply: Reply, request_id: str) -> bytes:
    """Returns a reply as it goes over the wire."""
    status = HTTPStatus(reply.status)
    lines = [b"%s: %s\r\n" % header for header in schemas.head_of(reply, request_id)]
    return b"HTTP/1.1 %d %s\r\n%s\r\n%s" % (status, status.phrase.encode(), b"".join(lines), reply.body)
