"""One HTTP connection: uvicorn's, with the limits on heads, time and unread answers that uvicorn with httptools lacks.

Source: uvicorn 0.54, `protocols/http/httptools_impl.py`: overridden are asyncio's, httptools' and its own callbacks.
"""

from __future__ import annotations

import asyncio
import random
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from service import logs
from service.errors import DeadlineExceeded, InvalidArgument, Overloaded, ServiceError, TooLarge
from service.metrics import Metrics
from service.rest import schemas
from service.rest.crowd import Crowd, Patience
from service.rest.refusals import Nobody, Refusals, whole
from service.security.callers import Caller, caller_shown
from service.wire.calls import request_id_of
from service.wire.failures import failure_of, log_failure

HEAD_BYTES_MAX = 64 << 10
"""Request line and headers."""
HEADERS_MAX = 128
STEP_BYTES = 1 << 10
"""Parsed at a time of what may hold many requests: once two are there, the rest stays unparsed until they are
answered. A parsed request takes a hundred times the bytes of the smallest one."""

_LOG = logs.logger(__name__)


class _Flow(FlowControl):
    """uvicorn's, which also keeps still while requests wait in line: uvicorn reads on whenever an answer awaits."""

    held = False

    def resume_reading(self) -> None:
        """Reads on, unless requests wait in line."""
        if not self.held:
            super().resume_reading()


class Connection(HttpToolsProtocol):
    """Refuses a head that is broken, too large or too slow, in the one shape of errors, and then closes; ends where
    its caller neither asks nor reads. Requests that were sent ahead of an answer wait unread."""

    flow: _Flow

    def __init__(
        self, crowd: Crowd, patience: Patience, metrics: Metrics, refusals: Refusals | Nobody, *args: Any, **kwargs: Any
    ) -> None:
        """Takes what uvicorn gives a protocol, after all that connections share."""
        super().__init__(*args, **kwargs)
        self._crowd, self._patience, self._metrics, self._refusals = crowd, patience, metrics, refusals
        self.timeout_keep_alive = patience.idle_s  # type: ignore[assignment]
        self._caller: Caller | None = None
        self._joined = False
        self._in_head = False
        self._head_bytes = 0
        self._body_bytes_left = 0
        self._held = b""
        self._late: asyncio.TimerHandle | None = None
        self._slow: asyncio.TimerHandle | None = None
        self._old_at = float("inf")

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins the time that an idle connection is kept, also before its first request."""
        super().connection_made(transport)
        self.flow = _Flow(transport)
        self._caller = caller_shown(transport.get_extra_info("peercert"))
        self._joined = True
        if self._patience.age_s:  # not all at once, though they may all have come at once
            self._old_at = self.loop.time() + self._patience.age_s * random.uniform(0.9, 1.1)  # noqa: S311
        self._set_idle()
        if not self._crowd.join(self):
            self._refuse(HTTPStatus.TOO_MANY_REQUESTS, Overloaded("every connection of this door has a call", 1.0))

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends every timer."""
        self._in_time()
        self._quick()
        self._unset_keepalive_if_required()
        self._held = b""
        if self._joined:
            self._joined = False
            self._crowd.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parses what came, as far as it is not ahead of its answers."""
        if self._held:
            self._held += data
        elif not self._refuse_at_once(data):
            self._parse(data)

    def _refuse_at_once(self, data: bytes) -> bool:
        """Refuses what is one whole call, if the service has no room for it; tells whether it did."""
        between = self.cycle is None or (self.cycle.response_complete and not self.cycle.more_body)
        if self._in_head or not between or self.transport.is_closing() or self.loop.time() >= self._old_at:
            return False
        refused = self._refusals.of_bytes(data, tuple(self.server_state.default_headers))
        if refused is None:
            return False
        self.transport.write(refused)
        self.server_state.total_requests += 1
        self._crowd.works(self)
        self._crowd.waits(self)
        self._set_idle()
        return True

    def _parse(self, data: bytes) -> None:
        at = 0
        while at < len(data) and not self.transport.is_closing():
            if self.pipeline:
                self._held = data[at:]
                self._in_time()  # it is not the caller who takes time
                self.flow.pause_reading()
                self.flow.held = True
                return
            end = at + max(STEP_BYTES, self._body_bytes_left)
            self._parse_step(data[at:end] if at or end < len(data) else data)
            at = end

    def _parse_step(self, data: bytes) -> None:
        """Parses a little; most heads come whole, and cost nothing more here."""
        begun = self._in_head
        if self._body_bytes_left:
            self._body_bytes_left -= min(self._body_bytes_left, len(data))
        super().data_received(data)
        if not self._in_head or self.transport.is_closing():
            return
        if self._late is None:
            self._late = self.loop.call_later(self._patience.head_s, self._too_late)
        if begun:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                told = TooLarge(f"the headers have more than {HEAD_BYTES_MAX} bytes")
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, told)

    def on_message_begin(self) -> None:
        """A request's first byte."""
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()
        if self._caller is not None:
            self.scope["state"]["caller"] = self._caller

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; what is sent as one after the body is not kept. Uvicorn's is not called: it comes for every one."""
        if not self._in_head:
            return
        name = name.lower()
        if name == b"content-length":
            self._body_bytes_left = int(value)  # what is already here of the body is not told
        elif name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        if len(self.headers) == HEADERS_MAX:
            raise _ManyHeadersError
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The end of a head."""
        self._in_head = False
        self._in_time()
        self._crowd.works(self)
        super().on_headers_complete()
        if self.loop.time() >= self._old_at:
            self.cycle.keep_alive = False

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Begins to answer a request: at once where the service has no room for it."""
        more = tuple(self.server_state.default_headers)
        stays = cycle.keep_alive and self.loop.time() < self._old_at
        refused = self._refusals.of_request(cycle.scope, more, stays)
        if refused is None:
            super()._start_asgi_task(cycle, app)
            return
        self.transport.write(refused)
        cycle.response_started = cycle.response_complete = True
        if not stays:
            self.transport.close()
        self.on_response_complete()

    def on_message_complete(self) -> None:
        """The end of a request; where its answer was out before, the time of an idle connection begins here."""
        self._body_bytes_left = 0
        super().on_message_complete()
        if self.cycle.response_complete and self.cycle.more_body:
            self.cycle.more_body = False
            self._in_time()
            self._set_idle()

    def on_response_complete(self) -> None:
        """The end of an answer: what waited behind it is parsed now."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._watch_reader()
            return
        if self.cycle.response_complete:
            if not self.flow.write_paused:  # else its caller still reads
                self._crowd.waits(self)
            if self.cycle.more_body and self._late is None:  # nobody reads the rest, and it may have no end
                self._late = self.loop.call_later(self._patience.head_s, self._rest_too_late)
        if self.flow.held and not self.pipeline:
            self.flow.held = False
            held, self._held = self._held, b""
            self._parse(held)
            self.flow.resume_reading()

    def pause_writing(self) -> None:
        """An answer is larger than the network takes at once: from here on its reader is watched."""
        super().pause_writing()
        self._crowd.stalls(self, self.transport.get_write_buffer_size())
        self._watch_reader()

    def resume_writing(self) -> None:
        """The reader has caught up."""
        super().resume_writing()
        self._crowd.reads(self)
        if self.transport.is_closing():
            return
        self._quick()
        if self.cycle is not None and self.cycle.response_complete and not self._in_head:
            self._crowd.waits(self)

    def shutdown(self) -> None:
        """The service drains: what is on its way is read within bounds."""
        super().shutdown()
        self._watch_reader()

    def timeout_keep_alive_handler(self) -> None:
        """Nothing was asked for long."""
        super().timeout_keep_alive_handler()
        self._watch_reader()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002
        """Refuses what is no HTTP."""
        if len(self.headers or ()) == HEADERS_MAX:
            told = TooLarge(f"the request has more than {HEADERS_MAX} headers")
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, told)
        else:
            self._refuse(HTTPStatus.BAD_REQUEST, InvalidArgument("this is no HTTP/1.1 request"))

    def cut(self, reason: str) -> None:
        """Ends at once, whatever is on its way."""
        self._metrics.connection_cut(reason)
        self.transport.abort()

    def _unsupported_upgrade_warning(self) -> None:
        """An upgrade that is not offered is no event: the request is answered as it is."""

    def _set_idle(self) -> None:
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _watch_reader(self) -> None:
        """Looks now and then whether what was written goes out; also what is closed goes out first."""
        size = self.transport.get_write_buffer_size()
        if size and self._slow is None:
            self._slow = self.loop.call_later(self._patience.grace_s, self._look_at_reader, size)

    def _look_at_reader(self, before: int) -> None:
        self._slow = None
        read = before - self.transport.get_write_buffer_size()
        if read < min(before, self._patience.bytes_per_s_min * self._patience.grace_s):
            self.cut("unread")
        else:
            self._watch_reader()

    def _quick(self) -> None:
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None

    def _too_late(self) -> None:
        told = DeadlineExceeded(f"the headers were not here after {self._patience.head_s:g} s")
        self._refuse(HTTPStatus.REQUEST_TIMEOUT, told)

    def _rest_too_late(self) -> None:
        self._late = None
        self.cut("rest")

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
            self.transport.write(whole(reply, failure.request_id))
        self.transport.close()
        self._watch_reader()


class _ManyHeadersError(Exception):
    """Ends the parser."""
