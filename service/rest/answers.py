"""A reply -> the bytes of a response."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from service.rest.schemas import Header, Reply

CLOSE: Header = (b"connection", b"close")


class Lines:
    """The header lines of every response, joined when they change: the date does once a second."""

    def __init__(self) -> None:
        """Begins with none."""
        self._headers: list[Header] = []
        self._joined = b""

    def of(self, headers: list[Header]) -> bytes:
        """Returns the lines of these headers; a list that is given again is the same."""
        if self._headers is not headers:
            self._headers, self._joined = headers, b"".join([b"%b: %b\r\n" % header for header in headers])
        return self._joined


def whole(reply: Reply, request_id: str, before: bytes = b"", stays: bool = True) -> bytes:
    """Returns a reply as it goes over the wire.

    Args:
      reply: status, headers and body.
      request_id: of the call.
      before: header lines that come first.
      stays: whether the connection is kept behind it, as far as the reply itself does not tell.
    """
    more = b""
    for name, value in reply.headers:
        more += b"%b: %b\r\n" % (name, value)
    if not stays and CLOSE not in reply.headers:
        more += b"connection: close\r\n"
    return b"%b%bcontent-type: %b\r\ncontent-length: %d\r\nx-request-id: %b\r\n%b\r\n%b" % (
        STATUS_LINE[reply.status],
        before,
        reply.content_type.encode(),
        len(reply.body),
        request_id.encode(),
        more,
        reply.body,
    )


def without_body(response: bytes) -> bytes:
    """Returns the response to the same request by HEAD."""
    return response[: response.index(b"\r\n\r\n") + 4]
