"""Requests over HTTP to other programs, of which none is trusted.

A request may have a token, so that redirects are not followed, nor are proxies of the environment
used. A response has a maximum size. The whole exchange has a deadline: with a timeout for each
read, a program that sends a byte at a time would hold up its caller for ever.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import NamedTuple
from urllib.parse import urlsplit

_CONNECT_S = 5.0
"""Time for a connection to each address of a host, and for its TLS handshake."""
_REJECTION_BYTES = 64 << 10
"""Number of bytes that are read of a response that rejects a request: its beginning is enough."""
_SHOWN_CHARACTERS = 200
"""Number of characters of a redirect's target that a message repeats."""


class ExchangeFailed(OSError):
    """There is no response that can be used; the message says why."""


class Response(NamedTuple):
    """The response of another program.

    Attributes:
      status: The status: neither an informational one nor a redirect.
      headers: The headers.
      content: The body; its beginning if the status is 400 or above.
    """

    status: int
    headers: http.client.HTTPMessage
    content: bytes


def exchange(
    url: str,
    headers: Mapping[str, str],
    *,
    bytes_max: int,
    deadline_s: float,
    body: bytes | None = None,
    tls: ssl.SSLContext | None = None,
) -> Response:
    """Sends a GET, or a POST with a body, and returns the response.

    Args:
      url: The URL; its scheme is http or https.
      headers: The headers.
      bytes_max: The maximum size of the body of the response.
      deadline_s: The time for the whole exchange, in seconds.
      body: The body of the request; None: the request is a GET.
      tls: The context of TLS; None: the default one.

    Raises:
      ExchangeFailed: The program cannot be reached, redirects the request, does not respond in
        time, or responds with something else than HTTP or with too many bytes.
    """
    end = time.monotonic() + deadline_s
    parts = urlsplit(url)
    connect_s = min(_CONNECT_S, deadline_s)
    method = "POST"
    if body is None:
        method = "GET"
    try:
        if parts.scheme == "https":
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                parts.netloc, timeout=connect_s, context=tls
            )
        else:
            connection = http.client.HTTPConnection(parts.netloc, timeout=connect_s)
        with closing(connection):
            connection.connect()
            left_s = max(0.0, end - time.monotonic())
            with _ended_after(left_s, connection.sock):
                target = parts._replace(scheme="", netloc="", fragment="").geturl()
                connection.request(method, target or "/", body, dict(headers))
                with connection.getresponse() as response:
                    return _read(response, bytes_max)
    except ExchangeFailed:
        raise
    except (OSError, http.client.HTTPException) as problem:
        if time.monotonic() >= end:
            raise ExchangeFailed(f"no complete response within {deadline_s:g} s") from problem
        raise ExchangeFailed(str(problem) or repr(problem)) from problem
    # Its text would repeat a header, such as a token with a line break.
    except ValueError:
        raise ExchangeFailed("the URL or a header has a character that HTTP forbids") from None


@contextmanager
def _ended_after(seconds: float, connection: socket.socket) -> Iterator[None]:
    """Ends a connection, and raises TimeoutError, if what happens meanwhile takes too long."""
    has_ended = threading.Event()

    def end() -> None:
        has_ended.set()
        # Unlike `close`, this wakes up the thread that reads. Not the method of an SSLSocket,
        # which would take the TLS session from under that thread. OSError: it is closed already.
        with suppress(OSError):
            socket.socket.shutdown(connection, socket.SHUT_RDWR)

    connection.settimeout(seconds)
    timer = threading.Timer(seconds, end)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        # The number of a closed socket may be that of another one by the time the timer ends it.
        timer.join()
    # A body without a length looks complete where the connection ends.
    if has_ended.is_set():
        raise TimeoutError("the deadline has passed")


def _read(response: http.client.HTTPResponse, bytes_max: int) -> Response:
    """Reads a response.

    Raises:
      OSError, HTTPException: See `exchange`.
    """
    if 300 <= response.status < 400:
        target = response.getheader("location", "")[:_SHOWN_CHARACTERS]
        raise ExchangeFailed(
            f"the response is a redirect (status {response.status}) to {target!r}, which is not "
            "followed; name the address that responds itself"
        )
    if response.status >= 400:
        content = response.read(_REJECTION_BYTES)
        return Response(response.status, response.headers, content)

    content = response.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise ExchangeFailed(f"the response has more than {bytes_max} bytes, the limit")
    # http.client reports this only if the whole body is read at once, whatever its size.
    if response.length:
        raise http.client.IncompleteRead(content, response.length)
    return Response(response.status, response.headers, content)
