"""One HTTP connection: uvicorn's, with limits on a request's head, which uvicorn with httptools has none for.

Source: uvicorn 0.54, `protocols/http/httptools_impl.py`: overridden are asyncio's and httptools' callbacks.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service import logs
from service.errors import DeadlineExceeded, InvalidArgument, ServiceError, TooLarge
from service.metrics import Metrics
from service.rest import schemas
from service.wire.calls import request_id_of
from service.wire.failures import failure_of, log_failure

HEAD_BYTES_MAX = 64 << 10
"""Request line and headers; told from the second read on, so that one read more than this may be taken."""
HEAD_S_MAX = 10.0
"""From the first byte of a request to the end of its headers."""

_LOG = logs.logger(__name__)


class Connection(HttpToolsProtocol):
    """Refuses a head that is broken, too large or too slow, in the one shape of errors, and then closes."""

    def __init__(self, metrics: Metrics, *args: Any, head_s_max: float = HEAD_S_MAX, **kwargs: Any) -> None:
        """Takes what uvicorn gives a protocol, after the metrics that refusals are counted in."""
        super().__init__(*args, **kwargs)
        self._metrics, self._head_s_max = metrics, head_s_max
        self._in_head = False
        self._head_bytes = 0
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins the time that an idle connection is kept, also before its first request."""
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends every timer."""
        self._in_time()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parses what came; most heads come whole, and cost nothing more here."""
        begun = self._in_head
        super().data_received(data)
        if not self._in_head or self.transport.is_closing():
            return
        if self._late is None:
            self._late = self.loop.call_later(self._head_s_max, self._too_late)
        if begun:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                told = TooLarge(f"the headers have more than {HEAD_BYTES_MAX} bytes")
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, told)

    def on_message_begin(self) -> None:
        """A request's first byte."""
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; what is sent as one after the body is not kept."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The end of a head."""
        self._in_head = False
        self._in_time()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002
        """Refuses what is no HTTP."""
        self._refuse(HTTPStatus.BAD_REQUEST, InvalidArgument("this is no HTTP/1.1 request"))

    def _unsupported_upgrade_warning(self) -> None:
        """An upgrade that is not offered is no event: the request is answered as it is."""

    def _too_late(self) -> None:
        told = DeadlineExceeded(f"the headers were not here after {self._head_s_max:g} s")
        self._refuse(HTTPStatus.REQUEST_TIMEOUT, told)

    def _in_time(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _refuse(self, status: HTTPStatus, problem: ServiceError) -> None:
        self._in_time()
        failure = failure_of(problem, request_id_of(None, None))
        log_failure(_LOG, "other", failure, problem)
        self._metrics.answered("http", "other", failure.code.value, 0.0)
        answering = self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete
        if not answering and not self.pipeline:  # else this would fall into an answer on its way
            reply = schemas.failed(failure, protobuf=False, status=status, headers=((b"connection", b"close"),))
            lines = [b"%s: %s\r\n" % header for header in schemas.head_of(reply, failure.request_id)]
            head = f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() + b"".join(lines) + b"\r\n"
            self.transport.write(head + reply.body)
        self.transport.close()
