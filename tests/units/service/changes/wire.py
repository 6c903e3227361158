"""A proxy between two services, which tests have cut what passes."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.e2e.process import WAIT_S


class Wire:
    """Hands on requests to a service.

    Attributes:
      http: The URL under which the service is reached over the wire.
      is_cut: Whether connections are cut within responses.
      is_busy: Whether requests are rejected, as by a service that has too many.
    """

    def __init__(self, service: str, http: str) -> None:
        self.http = http
        self.is_cut = False
        self.is_busy = False
        self._service = service

    def respond(self, handler: BaseHTTPRequestHandler) -> None:
        """Responds to one request as the service does."""
        if self.is_busy:
            handler.send_error(429)
            return
        headers = {"authorization": handler.headers["authorization"]}
        request = urllib.request.Request(self._service + handler.path, headers=headers)
        with urllib.request.urlopen(request, timeout=WAIT_S) as response:
            content = response.read()
            received = response.headers
        handler.send_response(200)
        for name, value in received.items():
            if name.startswith("rowcast-"):
                handler.send_header(name, value)
        handler.send_header("content-length", str(len(content)))
        handler.end_headers()
        if self.is_cut:
            content = content[: len(content) // 2]
        handler.wfile.write(content)


@contextmanager
def wire_to(service: str) -> Iterator[Wire]:
    """Yields a wire to the service with a URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wire.respond(self)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    wire = Wire(service, f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield wire
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
