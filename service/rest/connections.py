"""One HTTP connection: uvicorn's, with the limits on heads, time and unread answers that uvicorn with httptools lacks.

The five calls are answered from its callbacks, everything else by an ASGI application as uvicorn runs it.
Source: uvicorn 0.54, `protocols/http/httptools_impl.py`: overridden are asyncio's, httptools' and its own callbacks.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from service.errors import DeadlineExceeded, InvalidArgument, Overloaded, ServiceError, TooLarge
from service.metrics import Metrics
from service.rest import schemas
from service.rest.answers import whole, without_body
from service.rest.crowd import Crowd, Patience
from service.rest.departure import Departure
from service.rest.heads import HEAD_BYTES_MAX, HEADERS_MAX, Call, ManyHeadersError, Memory, combined, without_offer
from service.rest.hot_calls import HotCall, HotCalls, is_silent
from service.rest.paths import asked_of
from service.rest.reading import Cycle, Flow, ReaderWatch, hung_up, step_bytes
from service.rest.refusals import refused_whole
from service.security.callers import Caller, caller_shown

_NEVER = float("inf")


class Connection(HttpToolsProtocol):
    """Refuses a head that is broken, too large or too slow, in the one shape of errors, and then closes; ends where
    its caller neither asks nor reads. Requests that were sent ahead of an answer wait unread."""

    flow: Flow
    cycle: Cycle | None  # type: ignore[assignment]

    def __init__(
        self, crowd: Crowd, patience: Patience, metrics: Metrics, calls: HotCalls | None, *args: Any, **kwargs: Any
    ) -> None:
        """Takes what uvicorn gives a protocol, after all that connections share; calls: None: the application's."""
        super().__init__(*args, **kwargs)
        self._crowd, self._patience, self._metrics, self._calls = crowd, patience, metrics, calls
        self.caller: Caller | None = None
        self._answering: Cycle | None = None
        self._unsent: tuple[HotCall, bytes] | None = None
        self._idle_at = self._old_at = _NEVER
        self._joined = self._in_head = self._offered = False
        self._head_bytes = self._body_bytes_left = 0
        self._held = b""
        self._late: asyncio.TimerHandle | None = None
        self._reader, self._departure, self._memory = ReaderWatch(self.loop, patience), Departure(), Memory()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins the time that an idle connection is kept, also before its first request."""
        super().connection_made(transport)
        self.flow = Flow(transport)
        self.caller = caller_shown(transport.get_extra_info("peercert"))
        self._joined = True
        self._old_at = 0.0 if self._crowd.leaving else self.loop.time() + self._patience.some_age_s()
        self._set_idle()
        if not self._crowd.join(self):
            self._refuse(HTTPStatus.TOO_MANY_REQUESTS, Overloaded("every connection of this door has a call", 1.0))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Ends every timer, and what is being answered."""
        self._in_time()
        self._reader.end()
        self._departure.end()
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
        self._held, self._unsent = b"", None
        if self._joined:
            self._joined = False
            self._crowd.leave(self)
        self.connections.discard(self)
        self.pipeline.clear()
        if isinstance(self._answering, HotCall):
            self._answering.gone()
        elif self._answering is not None:
            hung_up(cast(RequestResponseCycle, self._answering))
        self.flow.resume_writing()
        # What holds the connection is let go of: else a collection of garbage would have to, while every call waits.
        self.parser = self.cycle = self._answering = self.timeout_keep_alive_task = None  # type: ignore[assignment]

    def eof_received(self) -> bool:  # type: ignore[override]
        """Tells whether to keep the connection for answers to what is here: it may have closed its side only."""
        if self._answering is None or self._answering.more_body or not self.transport.can_write_eof():
            return False  # TLS knows no such half
        self._departure.begin(self.transport, lambda: not self.flow.write_paused and is_silent(self._answering))
        return True

    def data_received(self, data: bytes) -> None:
        """Takes what came, as far as it is not ahead of its answers; between two requests that is mostly one call."""
        if self._held:
            self._held += data
        elif self._calls is None or not self._between:
            self._parse(data)
        elif (call := self._memory.call_in(data)) is not None:
            self._take_up(call, self._calls, data)
        else:
            self._parse(data)
            self._learn(data, self._calls)

    @property
    def _between(self) -> bool:
        """Whether what comes now begins a request, and may be answered at once."""
        over = self.cycle is None or (self.cycle.response_complete and not self.cycle.more_body)
        return over and not self._in_head and not self.flow.write_paused and not self.transport.is_closing()

    def _take_up(self, call: Call, calls: HotCalls, data: bytes) -> None:
        """Has a whole call answered, or refuses it, as if it had been parsed."""
        now = self.loop.time()
        stays = now < self._old_at
        before = calls.lines.of(self.server_state.default_headers)
        if stays and (refused := calls.refusals.of_whole(call, before)) is not None:
            self.transport.write(refused)
            self.server_state.total_requests += 1
            self._crowd.worked(self)
            self._idle_at = now  # its timer runs since the head was parsed that this is known from
            return
        self._idle_at = _NEVER
        self._crowd.works(self)
        self._in_hand(HotCall(calls, self, call.head.asked, b"POST", call.headers, stays, expects=False, room=stays))
        self.on_body(data[call.body_at :])
        self.on_message_complete()

    def _learn(self, data: bytes, calls: HotCalls) -> None:
        """Keeps the head of what was parsed for the next call."""
        call = self.cycle
        if isinstance(call, HotCall) and call.method == b"POST" and call.keep_alive and not self._in_head:
            self._memory.learn(calls.heads, data, self.url, self.headers, call.asked)

    def _parse(self, data: bytes) -> None:
        at = 0
        while at < len(data) and not self.transport.is_closing():
            if self.pipeline:
                self._held = data[at:]
                self._in_time()  # it is not the caller who takes time
                self.flow.pause_reading()
                self.flow.held = True
                return
            end = at + step_bytes(data, self._body_bytes_left)
            self._parse_step(data[at:end] if at or end < len(data) else data)
            at = end
        self._await_body()

    def _parse_step(self, data: bytes) -> None:
        """Parses a little; most heads come whole, and cost nothing more here."""
        begun = self._in_head
        if self._body_bytes_left:
            self._body_bytes_left -= min(self._body_bytes_left, len(data))
        self._idle_at = _NEVER
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            if self._offered:  # else a CONNECT, which is answered as it is
                self._decline(data[offer.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("")
            return
        if not self._in_head or self.transport.is_closing():
            return
        if self._late is None:
            self._late = self.loop.call_later(self._patience.head_s, self._too_late)
        if begun:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                told = TooLarge(f"the headers have more than {HEAD_BYTES_MAX} bytes")
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, told)

    def _decline(self, rest: bytes) -> None:
        """Parses a head again without the protocol that it offers to change to: the parser left its body out."""
        head = without_offer(self.parser.get_method(), self.url, self.parser.get_http_version(), self.headers)
        self.parser, self._offered = httptools.HttpRequestParser(self), False
        self._parse_step(head + rest)

    def _await_body(self) -> None:
        if isinstance(self._answering, HotCall) and self._answering.more_body:
            self._answering.await_body()

    def on_message_begin(self) -> None:
        """A request's first byte."""
        self._in_head, self._head_bytes = True, 0
        self.url, self.headers, self.expect_100_continue = b"", [], False

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
            raise ManyHeadersError
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The end of a head."""
        parser = self.parser
        self._offered = parser.should_upgrade() and parser.get_method() != b"CONNECT"
        if self._offered:
            return
        self._in_head = False
        self._in_time()
        self._crowd.works(self)
        asked = None if self._calls is None else asked_of(self.url)
        if self._calls is None or asked is None:
            self._begin_other()
            return
        stays = parser.should_keep_alive() and parser.get_http_version() != "1.0" and self.loop.time() < self._old_at
        method, headers = parser.get_method(), combined(self.headers)
        self._in_hand(HotCall(self._calls, self, asked, method, headers, stays, self.expect_100_continue))

    def _in_hand(self, call: HotCall) -> None:
        """Begins a call, or keeps it until those before it are answered."""
        before, self.cycle = self.cycle, call
        if before is None or before.response_complete:
            self._start_asgi_task(call, self.app)
        else:
            self.pipeline.appendleft((call, self.app))  # type: ignore[arg-type]

    def _begin_other(self) -> None:
        """Has the application answer."""
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.headers.extend(headers)
        self.url, self.expect_100_continue = url, expects
        if self.caller is not None:
            self.scope["state"]["caller"] = self.caller
        super().on_headers_complete()
        if self.cycle is not None and self.loop.time() >= self._old_at:
            self.cycle.keep_alive = False

    def _start_asgi_task(self, cycle: RequestResponseCycle | HotCall, app: Any) -> None:
        """Begins to answer; only what the application answers needs a task."""
        self._answering = cycle
        if isinstance(cycle, HotCall):
            cycle.begin()
        else:
            super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        """Some of a body."""
        cycle = self.cycle
        if not isinstance(cycle, HotCall):
            super().on_body(body)
        elif not cycle.response_complete:
            cycle.take(body)

    def on_message_complete(self) -> None:
        """The end of a request; where its answer was out before, the time of an idle connection begins here."""
        if self._offered:
            return
        self._body_bytes_left = 0
        cycle = self.cycle
        if cycle is not None and cycle.response_complete and cycle.more_body:
            cycle.more_body = False
            self._in_time()
            self._set_idle()
        elif isinstance(cycle, HotCall):
            cycle.complete()
        else:
            super().on_message_complete()

    def answer(self, call: HotCall, reply: schemas.Reply, request_id: str) -> None:
        """Sends the reply to a call, once its caller has read enough of those before."""
        call.response_started = True
        response = whole(reply, request_id, call.calls.lines.of(self.server_state.default_headers), call.keep_alive)
        if call.method == b"HEAD":
            response = without_body(response)
        if self.flow.write_paused:
            self._unsent = call, response
        else:
            self._send(call, response)

    def _send(self, call: HotCall, response: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(self._departure.rest_of(response))
        if not call.draining:
            self.over(call)

    def over(self, call: HotCall) -> None:
        """A call drained, unless its answer is still to be sent."""
        if self._unsent is not None:
            return
        call.response_complete = True
        if not call.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def ask_for_body(self) -> None:
        """A caller waits to be asked for its body."""
        self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_response_complete(self) -> None:
        """The end of an answer: what waited behind it is taken up or parsed now.

        Uvicorn's is not called: it makes a timer each time.
        """
        self._answering = None
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            self._reader.begin(self.transport, self.cut)
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
            self._await_body()
        else:
            self._set_idle()
        if self.cycle is not None and self.cycle.response_complete:
            if not self.flow.write_paused:  # else its caller still reads
                self._crowd.waits(self)
            if self.cycle.more_body and self._late is None:  # nobody reads the rest, and it may have no end
                self._late = self.loop.call_later(self._patience.head_s, self.cut, "rest")
        if self.flow.held and not self.pipeline:
            self.flow.held = False
            held, self._held = self._held, b""
            self._parse(held)
            self.flow.resume_reading()
        if self._departure.told and (self._answering is None or self._answering.more_body):
            self.transport.close()

    def pause_writing(self) -> None:
        """An answer is larger than the network takes at once: from here on its reader is watched."""
        super().pause_writing()
        self._crowd.stalls(self, self.transport.get_write_buffer_size())
        self._reader.begin(self.transport, self.cut)

    def resume_writing(self) -> None:
        """The reader has caught up."""
        super().resume_writing()
        self._crowd.reads(self)
        if self.transport.is_closing():
            return
        self._reader.end()
        if self._unsent is not None:
            (call, response), self._unsent = self._unsent, None
            self._send(call, response)
        if self.cycle is not None and self.cycle.response_complete and not self._in_head:
            self._crowd.waits(self)

    def leave(self) -> None:
        """The service goes down soon: the next answer is the last."""
        self._old_at = 0.0

    def shutdown(self) -> None:
        """The service drains: what is on its way is read within bounds."""
        super().shutdown()
        self._reader.begin(self.transport, self.cut)

    def timeout_keep_alive_handler(self) -> None:
        """Nothing was asked for long, unless something was since the timer was set: one is enough for many requests."""
        left_s = self._patience.idle_s - max(self.loop.time() - self._idle_at, 0.0)
        if left_s > 0:
            self.timeout_keep_alive_task = self.loop.call_later(left_s, self.timeout_keep_alive_handler)
            return
        super().timeout_keep_alive_handler()
        self._reader.begin(self.transport, self.cut)

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

    def _set_idle(self) -> None:
        self._idle_at = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(self._patience.idle_s, self.timeout_keep_alive_handler)

    def _too_late(self) -> None:
        told = DeadlineExceeded(f"the headers were not here after {self._patience.head_s:g} s")
        self._refuse(HTTPStatus.REQUEST_TIMEOUT, told)

    def _in_time(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _refuse(self, status: HTTPStatus, problem: ServiceError) -> None:
        self._in_time()
        response = refused_whole(self._metrics, status, problem)
        answering = self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete
        if not answering and not self.pipeline:  # else this would fall into an answer on its way
            self.transport.write(self._departure.rest_of(response))
        self.transport.close()
        self._reader.begin(self.transport, self.cut)
