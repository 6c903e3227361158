"""uvicorn's HTTP protocol, which here ignores offers to upgrade the connection, bounds the memory
that a connection can occupy, closes it so that the last response arrives, and knows whether its
client has left.

Java's `HttpClient` sends `Connection: Upgrade, HTTP2-Settings` and `Upgrade: h2c` with requests.
A server may ignore the offer and respond over HTTP/1.1 (RFC 9110, section 7.8), and uvicorn means
to. But its parser ends such a request after the headers and reads the body as the next request: the
body is lost, and a client can hide a request in it from a proxy.

A socket that is closed while data arrives is reset by the kernel, and the client loses the response
that it has not read yet (RFC 9112, section 9.6). So a connection whose request was not read to its
end is closed in steps: the sending side first, then, once the client has closed its own side or a
limit is reached, the rest.

This is the only module that subclasses a dependency (docs/adr/0041-ignored-upgrade-offers.md).
A test fails once uvicorn keeps the body (https://github.com/Kludex/uvicorn/issues/2722). Then
delete the parser and its test.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_PIPELINE_MAX = 100
"""Maximum number of requests that wait behind another request of their connection. uvicorn stops
reading at the first, but parses all that one read has brought: 2,800 of them took 15 MB.
"""
HEADERS_MAX = 256
"""Maximum number of headers of a request."""
HEAD_BYTES_MAX = 64 << 10
"""Maximum size of the URL and the headers of a request."""
_HEADER_OVERHEAD_BYTES = 4
"""Size of the colon, a space and the end of a line."""
YIELDING_CONNECTIONS_MAX = 128
"""Maximum number of connections of a `YieldingHttpProtocol`."""
_LINGER_S = 30.0
"""Maximum time to discard the rest of a request whose response was sent."""
_LINGER_SILENCE_S = 3.0
"""Maximum time without data while the rest of a request is discarded."""
_LINGER_BYTES = 64 << 20
"""Maximum size of the rest of a request that is discarded."""
_FLUSH_S = 30.0
"""Maximum time for a client to read what remains of a response when its connection is closed."""
_BAD_REQUEST = "400 Bad Request"
_HEAD_TOO_LARGE = "431 Request Header Fields Too Large"


class HttpProtocol(HttpToolsProtocol):
    """Reads a request that offers an upgrade as if it did not offer one; uvicorn's `http=`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """Creates the protocol of one connection, as uvicorn does."""
        super().__init__(*args, **options)
        self.parser: Any = _OfferIgnoringParser(self)
        self.idle_since = self.loop.time()
        """The time at which the last response ended, or the connection began."""
        self._responding: Any = None
        self._in_head = False
        self._head_bytes = 0
        self._steps = 0
        self._unfinished_bytes = 0
        self._rejection = ""
        self._lingering: Any = None

    @property
    def is_idle(self) -> bool:
        """Whether no request is in progress: the headers of the next one have not arrived."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def is_left(self) -> bool:
        """Whether nobody waits for a response any more: the client has left, or was rejected."""
        return bool(self.transport.is_closing())

    def abandon(self) -> None:
        """Ends the request in progress, and the connection: a part of the response may have been
        sent.
        """
        self._drop_responses()
        if not self.is_left:
            self.transport.abort()

    def connection_made(self, transport: Any) -> None:
        """Begins the connection, which is closed unless a request arrives within the keep-alive."""
        # uvicorn starts its own timer only after a response.
        self._lingering = _LingeringTransport(transport, self)
        super().connection_made(self._lingering)
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the connection."""
        super().connection_lost(exc)
        self._drop_responses()
        self._lingering.connection_lost()
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        """Parses what has arrived, or discards it after the last response of the connection."""
        if self.transport.is_closing():
            self._lingering.discard(len(data))
            return
        steps = self._steps
        super().data_received(data)
        # The parser stores a header, a trailer or the extension of a chunk until it ends. Until
        # then it calls back for nothing, so that no other limit sees the bytes.
        if steps == self._steps:
            self._unfinished_bytes += len(data)
        else:
            self._unfinished_bytes = 0
        is_too_large = self._unfinished_bytes > HEAD_BYTES_MAX
        is_unguarded = self.timeout_keep_alive_task is None and self.is_idle
        if not (is_too_large or is_unguarded) or self.transport.is_closing():
            return
        if is_too_large:
            self._rejection = _HEAD_TOO_LARGE
            self.send_400_response(self._rejection)
        else:
            self._await_request()

    def on_message_begin(self) -> None:
        """Begins a request."""
        super().on_message_begin()
        self.scope["state"]["connection"] = self
        self._steps += 1
        self._in_head = True
        self._head_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Receives a header. Trailers count as well, and are left out: nothing reads them."""
        self._steps += 1
        self._head_bytes += len(name) + len(value) + _HEADER_OVERHEAD_BYTES
        if self._head_bytes > HEAD_BYTES_MAX:
            self._reject()
        # A trailer.
        if not self._in_head:
            return
        if len(self.headers) >= HEADERS_MAX:
            self._reject()
        # The parser leaves out the white space before a value, but not the one after it.
        super().on_header(name, value.rstrip(b" \t"))

    def on_headers_complete(self) -> None:
        """Starts the request, unless it offers an upgrade: then it is parsed once more.

        Raises:
          HttpParserError: Too many requests of the connection wait for their responses. The
            protocol responds with 400 and closes the connection.
        """
        self._steps += 1
        # The bytes of a URL that is not finished are bounded as those of a header.
        self._head_bytes += len(self.url)
        if self._head_bytes > HEAD_BYTES_MAX:
            self._reject()
        if len(self.pipeline) >= _PIPELINE_MAX:
            raise httptools.HttpParserError("too many pipelined requests")
        if not self.parser.should_upgrade():
            self._in_head = False
            super().on_headers_complete()
            if not self.pipeline:
                self._responding = self.cycle

    def on_body(self, body: bytes) -> None:
        """Receives a part of a body."""
        self._steps += 1
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Ends the request, unless it offers an upgrade: its body has not been parsed yet."""
        self._steps += 1
        if not self.parser.should_upgrade():
            super().on_message_complete()
            # Also if the body was skipped: `closes_early` must not wait for it.
            self.cycle.more_body = False

    def on_response_complete(self) -> None:
        """Ends a request; the next one must begin within the keep-alive."""
        self.idle_since = self.loop.time()
        if self.pipeline:
            self._responding = self.pipeline[-1][0]
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Responds to what cannot be parsed, or is too large, and closes the connection."""
        if self._rejection:
            msg = (
                f"The URL and the headers exceed {HEAD_BYTES_MAX} bytes, or {HEADERS_MAX} headers."
            )
        body = msg.encode("ascii")
        lines = (
            f"HTTP/1.1 {self._rejection or _BAD_REQUEST}",
            "content-type: text/plain; charset=utf-8",
            f"content-length: {len(body)}",
            "connection: close",
        )
        head = "\r\n".join([*lines, "", ""]).encode("ascii")
        # The client gets this response instead of the application's, unless that has begun.
        responding = self._responding
        if responding is None or responding.response_complete or not responding.response_started:
            self.transport.write(head + body)
        self._drop_responses()
        self._lingering.linger()

    def _drop_responses(self) -> None:
        """Lets uvicorn drop what the application still sends, and report the disconnect to it."""
        # uvicorn itself does so for the newest request alone, which waits behind another one if the
        # client sends requests without waiting for responses. Those that wait are never begun.
        for cycle in (self._responding, self.cycle):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()

    def closes_early(self) -> bool:
        """Returns whether a part of the requests of the connection was not read."""
        return self.cycle is not None and (self.cycle.more_body or bool(self.pipeline))

    def _reject(self) -> None:
        self._rejection = _HEAD_TOO_LARGE
        raise httptools.HttpParserError("the headers are too large")

    def _await_request(self) -> None:
        """Closes the connection unless the headers of a request arrive in time. Parts of them
        prolong nothing.
        """
        # From the end of the last response, whatever arrived since.
        remaining_s = self.idle_since + self.timeout_keep_alive - self.loop.time()
        self.timeout_keep_alive_task = self.loop.call_later(
            max(0.0, remaining_s), self.timeout_keep_alive_handler
        )


class YieldingHttpProtocol(HttpProtocol):
    """The protocol of an endpoint that responds to everybody at once.

    Beyond `YIELDING_CONNECTIONS_MAX` connections, the connection that has been idle for the longest
    time is closed. So idle connections can never keep a probe from its response.
    """

    def connection_made(self, transport: Any) -> None:
        """Begins the connection, in place of an idle one if there are too many."""
        super().connection_made(transport)
        if len(self.connections) <= YIELDING_CONNECTIONS_MAX:
            return
        # Connections with a request in progress are not closed: at least the new one is idle.
        idle = [
            connection
            for connection in self.connections
            if isinstance(connection, HttpProtocol) and connection.is_idle
        ]
        min(idle, key=lambda connection: connection.idle_since).transport.abort()


class UnknownConnection:
    """A connection of another server, such as Ray Serve's, which ends its requests itself."""

    is_left = False

    def abandon(self) -> None:
        """Leaves the connection to its server."""


class _LingeringTransport:
    """A transport that closes the sending side first if data may still arrive."""

    def __init__(self, transport: asyncio.Transport, protocol: HttpProtocol) -> None:
        self._transport = transport
        self._protocol = protocol
        self._timer: asyncio.TimerHandle | None = None
        self._end = 0.0
        self._discarded = 0

        # uvicorn calls these for each request: as attributes, they cost no call of this class.
        self.write = transport.write
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading
        self.get_extra_info = transport.get_extra_info

    def is_closing(self) -> bool:
        """Returns whether the connection takes no further requests."""
        return self._timer is not None or self._transport.is_closing()

    def abort(self) -> None:
        """Closes the connection at once."""
        self.connection_lost()
        self._transport.abort()

    def close(self) -> None:
        """Closes the connection once its data is sent and, if the client has not finished its
        request, received.
        """
        if self.is_closing():
            return
        if self._protocol.closes_early():
            self.linger()
            return
        self._transport.close()
        # asyncio waits without a limit for a client that does not read.
        if self._transport.get_write_buffer_size():
            self._protocol.loop.call_later(_FLUSH_S, self._transport.abort)

    def linger(self) -> None:
        """Closes the sending side, and the connection within the limits."""
        if self.is_closing():
            return
        self._end = self._protocol.loop.time() + _LINGER_S
        self._await_data()
        # Reading may be paused, since the application did not read the body.
        self._protocol.flow.resume_reading()
        # TLS has no half-closed connections: its client sees the end by the length alone.
        if self._transport.can_write_eof():
            try:
                self._transport.write_eof()
            except OSError:
                # The client has reset the connection.
                self.abort()

    def discard(self, size: int) -> None:
        """Receives data that nothing reads any more."""
        if self._timer is None:
            return
        self._discarded += size
        if self._discarded > _LINGER_BYTES:
            self.abort()
        else:
            self._await_data()

    def connection_lost(self) -> None:
        """Ends the wait for the client."""
        if self._timer is not None:
            self._timer.cancel()

    def _await_data(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = self._protocol.loop
        until = min(self._end, loop.time() + _LINGER_SILENCE_S)
        self._timer = loop.call_at(until, self.abort)


class _OfferIgnoringParser:
    """A parser of `httptools` that is replaced by a new one whenever a request offers an upgrade.

    The new parser first reads the headers of that request without `upgrade`, and then everything
    that follows them, so that the body ends where the headers say.
    """

    def __init__(self, protocol: HttpProtocol) -> None:
        self._protocol = protocol
        self._replace_parser()

    def feed_data(self, data: bytes) -> None:
        """Parses what has arrived; the protocol is called back for each part of a request.

        Raises:
          HttpParserError: It is not HTTP. The protocol responds with 400 and closes the connection.
        """
        unread: bytes | memoryview = data
        # A client can send several such requests at once. A loop serves any number of them, where
        # recursion would not, and a view is not copied for each.
        while True:
            try:
                self._parser.feed_data(unread)
            except httptools.HttpParserUpgrade as offer:
                headers_end: int = offer.args[0]
                unread = memoryview(unread)[headers_end:]
                self._parse_headers_again()
            else:
                return

    def _parse_headers_again(self) -> None:
        method = self._parser.get_method()
        if method == b"CONNECT":
            # It requests a tunnel: no length separates its body from the next request.
            raise httptools.HttpParserError("CONNECT is not supported")

        version = self._parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (method, self._protocol.url, version)]
        for name, value in self._protocol.headers:
            if name != b"upgrade":
                lines.append(b"%s: %s" % (name, value))
        headers = b"\r\n".join([*lines, b"", b""])

        self._replace_parser()
        self._parser.feed_data(headers)

    def _replace_parser(self) -> None:
        parser = httptools.HttpRequestParser(self._protocol)
        # As uvicorn sets it: data that a client sends after `connection: close` is ignored.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._parser = parser

        # uvicorn calls these several times per request: as attributes, they cost no further call.
        self.get_http_version = parser.get_http_version
        self.get_method = parser.get_method
        self.should_keep_alive = parser.should_keep_alive
        self.should_upgrade = parser.should_upgrade
