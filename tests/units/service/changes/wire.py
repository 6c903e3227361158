"""A proxy between two services, which tests have damage, cut or hold what passes."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.e2e.process import WAIT_S

Passing = Callable[[str, bytes], bytes | None]
"""Returns what is sent on of a response by its path; None: the connection is cut within it."""


class Wire:
    """Hands on requests to a service.

    Attributes:
      http: The URL under which the service is reached over the wire.
      passing: What happens to each response with records or parts of segments.
    """

    def __init__(self, service: str, http: str) -> None:
        self.http = http
        self.passing: Passing = lambda _, content: content
        self._service = service

    def respond(self, handler: BaseHTTPRequestHandler) -> None:
        """Responds to one request as the service does."""
        names = ("authorization",)
        headers = {name: handler.headers[name] for name in names if name in handler.headers}
        request = urllib.request.Request(self._service + handler.path, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=WAIT_S) as response:
                status = response.status
                content = response.read()
                received = response.headers
        except urllib.error.HTTPError as problem:
            with problem:
                status = problem.code
                content = problem.read()
                received = problem.headers
        passed = content
        if status == 200:
            whole = self.passing(handler.path, content)
            passed = content[: len(content) // 2]
            if whole is not None:
                passed = whole
        handler.send_response(status)
        for name, value in received.items():
            if name.startswith("rowcast-"):
                handler.send_header(name, value)
        handler.send_header("content-length", str(max(len(content), len(passed))))
        handler.end_headers()
        handler.wfile.write(passed)


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
