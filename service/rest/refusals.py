"""Calls that there is no room for, answered by the connection they came on.

That costs a fraction of refusing them in the application, so that those who flood a service take little from those
whom it answers; figures in docs/adr/0014. A call that came in one piece is not even parsed, but only looked at: it is
refused if there is no doubt where it ends.
"""

from __future__ import annotations

import re
import time

from service.engine.desk import Desk
from service.errors import InvalidArgument
from service.rest import schemas
from service.rest.answers import whole
from service.rest.guard import text_of
from service.rest.paths import Asked, asked_of
from service.rest.schemas import Headers, Reply
from service.wire.calls import REQUEST_ID, TIMEOUT_MS, TRACE_PARENT, request_id_of, timeout_s_of
from service.wire.failures import failure_of
from service.wire.operations import OPERATIONS

_DIGITS_MAX = 9
_REQUEST = re.compile(rb"POST (/[!-~]+) HTTP/1\.1\r\n((?:[!-9;-~]+:[ -~\t]*\r\n)+)\r\n")
"""What most clients send of a call: a line, headers, nothing odd."""
_UNUSUAL = frozenset({b"transfer-encoding", b"connection", b"expect", b"upgrade"})
"""Headers that say how to go on; whoever sends one is left to the parser."""


class Refusals:
    """What a connection asks before it takes a request up."""

    def __init__(self, desk: Desk) -> None:
        """Refuses what the desk's engine has no room for."""
        self._engine, self._metrics = desk.engine, desk.metrics

    @property
    def likely(self) -> bool:
        """Whether some calls are refused now."""
        return self._engine.crowded

    def of_bytes(self, data: bytes, before: bytes) -> bytes | None:
        """Returns the whole response to bytes that are one whole call, and refused; None: they are to be parsed.

        Args:
          data: what came on a connection between two requests.
          before: header lines that every response has.
        """
        found = _REQUEST.match(data)
        asked = None if found is None else asked_of(found[1])
        if found is None or asked is None:
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
        request_id = request_id_of(text_of(headers, REQUEST_ID), text_of(headers, TRACE_PARENT))
        refused = self._refused(asked, headers, request_id)
        return None if refused is None else whole(refused, request_id, before)

    def of_call(self, asked: Asked, method: bytes, headers: Headers, request_id: str) -> Reply | None:
        """Returns the reply to a call that is refused; None: it is not, as far as its head tells."""
        return self._refused(asked, headers, request_id) if method == b"POST" and self._engine.crowded else None

    def _refused(self, asked: Asked, headers: Headers, request_id: str) -> Reply | None:
        if asked.name not in OPERATIONS:
            return None
        try:
            timeout_s = timeout_s_of(text_of(headers, TIMEOUT_MS))
        except InvalidArgument:
            return None
        refused = self._engine.refusal(asked.name, None if timeout_s is None else time.monotonic() + timeout_s)
        if refused is None:
            return None
        failure = failure_of(refused, request_id)
        self._metrics.answered("http", asked.name, failure.code.value, 0.0)
        return schemas.failed(failure, schemas.wants_protobuf(headers))
