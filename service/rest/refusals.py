"""Calls that there is no room for, answered by the connection they came on.

That costs a fraction of refusing them in the application, so that those who flood a service take little from those
whom it answers; figures in docs/adr/0014. A call that came in one piece is not even parsed, but only looked at: it is
refused if there is no doubt where it ends.
"""

from __future__ import annotations

import re
import time
from http import HTTPStatus
from typing import Any

from service.engine.desk import Desk
from service.errors import InvalidArgument, Unauthenticated
from service.rest import schemas
from service.rest.guard import text_of
from service.rest.hot_calls import HOT_PATH
from service.rest.schemas import Header, Headers, Reply
from service.wire.calls import REQUEST_ID, TIMEOUT_MS, TRACE_PARENT, request_id_of, timeout_s_of
from service.wire.failures import failure_of
from service.wire.operations import OPERATIONS

_DIGITS_MAX = 9
_CLOSE = (b"connection", b"close")
_REQUEST = re.compile(rb"POST (/[^ ?#%]+) HTTP/1\.1\r\n((?:[!-9;-~]+:[ -~\t]*\r\n)+)\r\n")
"""What most clients send of a call: a line, headers, nothing odd."""
_UNUSUAL = frozenset({b"transfer-encoding", b"connection", b"expect", b"upgrade"})
"""Headers that say how to go on; whoever sends one is left to the parser."""


class Refusals:
    """What a connection asks before it makes a task of a request."""

    def __init__(self, desk: Desk) -> None:
        """Refuses what the desk's engine has no room for."""
        self._engine, self._metrics, self._tokens = desk.engine, desk.metrics, desk.guards.tokens

    def of_bytes(self, data: bytes, more: tuple[Header, ...]) -> bytes | None:
        """Returns the whole response to bytes that are one whole call, and refused; None: they are to be parsed.

        Args:
          data: what came on a connection between two requests.
          more: headers that every response has.
        """
        if not self._engine.crowded or (found := _REQUEST.match(data)) is None:
            return None
        headers: dict[bytes, bytes] = {}
        for line in found[2].split(b"\r\n")[:-1]:
            name, _, value = line.partition(b":")
            name = name.lower()
            if name in headers or name in _UNUSUAL:
                return None
            headers[name] = value.strip(b" \t")
        length = headers.get(b"content-length", b"")
        if not length.isdigit() or len(length) > _DIGITS_MAX or found.end() + int(length) != len(data):
            return None
        return self._refused(found[1].decode(), headers, more)

    def of_request(self, scope: Any, more: tuple[Header, ...], keep_alive: bool) -> bytes | None:
        """Returns the whole response to a request that is refused; None: it is not, as far as its headers tell.

        Args:
          scope: ASGI's, of the request.
          more: headers that every response has.
          keep_alive: whether the connection stays open behind it.
        """
        refused = None
        if self._engine.crowded and scope["method"] == "POST":
            more = more if keep_alive else (*more, _CLOSE)
            refused = self._refused(scope["path"], dict(scope["headers"]), more)
        if refused is None and self._may_enter(scope):
            self._engine.comes()
        return refused

    def _may_enter(self, scope: Any) -> bool:
        """Whether a request is not one that is refused for its token: those shall take no room from others."""
        if self._tokens is None:
            return True
        try:
            self._tokens.caller(dict(scope["headers"]).get(b"authorization"))
        except Unauthenticated:
            return False
        return True

    def _refused(self, path: str, headers: Headers, more: tuple[Header, ...]) -> bytes | None:
        asked = HOT_PATH.fullmatch(path)
        name = asked.groups()[-1] if asked is not None else ""
        if name not in OPERATIONS:
            return None
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
        return whole(schemas.failed(failure, schemas.wants_protobuf(headers), headers=more), request_id)


class Nobody:
    """Refuses nobody. In place of `Refusals` where there is no engine."""

    def of_bytes(self, data: bytes, more: tuple[Header, ...]) -> None:
        """Has bytes parsed."""

    def of_request(self, scope: Any, more: tuple[Header, ...], keep_alive: bool) -> None:
        """Has a request answered."""


def whole(reply: Reply, request_id: str) -> bytes:
    """Returns a reply as it goes over the wire."""
    status = HTTPStatus(reply.status)
    lines = [b"%s: %s\r\n" % header for header in schemas.head_of(reply, request_id)]
    return b"HTTP/1.1 %d %s\r\n%s\r\n%s" % (status, status.phrase.encode(), b"".join(lines), reply.body)
