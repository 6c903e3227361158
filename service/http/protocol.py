"""uvicorn's HTTP protocol, which here ignores offers to upgrade the connection, and bounds how many
requests of a connection wait.

Java's `HttpClient` sends `Connection: Upgrade, HTTP2-Settings` and `Upgrade: h2c` with requests.
A server may ignore the offer and respond over HTTP/1.1 (RFC 9110, section 7.8), and uvicorn means
to. But its parser ends such a request after the headers and reads the body as the next request: the
body is lost, and a client can hide a request in it from a proxy.

This is the only module that subclasses a dependency (docs/adr/0041-ignored-upgrade-offers.md).
A test fails once uvicorn keeps the body (https://github.com/Kludex/uvicorn/issues/2722). Then
delete this module and its test, and pass `http="httptools"` to uvicorn again.
"""

from __future__ import annotations

from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_PIPELINE_MAX = 100
"""Maximum number of requests that wait behind another one of their connection. uvicorn stops
reading at the first, but parses all that one read has brought: 2,800 of them took 15 MB.
"""


class HttpProtocol(HttpToolsProtocol):
    """Reads a request that offers an upgrade as if it did not offer one; uvicorn's `http=`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """Creates the protocol of one connection, as uvicorn does."""
        super().__init__(*args, **options)
        self.parser: Any = _OfferIgnoringParser(self)

    def on_headers_complete(self) -> None:
        """Starts the request, unless it offers an upgrade: then it is parsed once more.

        Raises:
          HttpParserError: Too many requests of the connection wait for their responses. The
            protocol responds with 400 and closes the connection.
        """
        if len(self.pipeline) >= _PIPELINE_MAX:
            raise httptools.HttpParserError("too many pipelined requests")
        if not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Ends the request, unless it offers an upgrade: its body has not been parsed yet."""
        if not self.parser.should_upgrade():
            super().on_message_complete()


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
            # It requests a tunnel, and has no body that could be told from the next request.
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

        # What uvicorn asks for, several times per request.
        self.get_http_version = parser.get_http_version
        self.get_method = parser.get_method
        self.should_keep_alive = parser.should_keep_alive
        self.should_upgrade = parser.should_upgrade
