"""Request headers as one mapping, and the forms of bodies that they name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from service.codec.metadata import REQUEST_ID, TIMEOUT_MS, TRACE_PARENT
from service.errors import InvalidArgument

JSON = "application/json"
PROTOBUF = "application/x-protobuf"
_JSON_TYPES = (JSON, "")
_PROTOBUF_TYPES = (PROTOBUF, "application/protobuf")
_LARGE_BYTES = 1 << 20
"""Admission leaves larger bodies to what handles calls, which closes the connection where that is
cheaper than to skip them.
"""
_CACHED = 32
"""Headers that are parsed once: clients send few different ones."""

Headers = Mapping[str, str]
"""Values by name in lower case."""


_NAMES = {
    name.encode(): name
    for name in (
        REQUEST_ID,
        TIMEOUT_MS,
        TRACE_PARENT,
        "accept",
        "authorization",
        "content-encoding",
        "content-length",
        "content-type",
        "host",
        "origin",
        "transfer-encoding",
    )
}
"""The headers that the service reads."""


def joined(raw: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Returns the headers of an ASGI scope that the service reads; one that comes more than once is
    the list of its values.
    """
    headers: dict[str, str] = {}
    for key, value in raw:
        if key in _NAMES:
            name = _NAMES[key]
            text = value.decode("latin-1")
            headers[name] = f"{headers[name]}, {text}" if name in headers else text
    return headers


def is_unusual(headers: Headers) -> bool:
    """Returns whether the body of a request is large, or may become so."""
    return "transfer-encoding" in headers or int(headers.get("content-length", 0)) > _LARGE_BYTES


def is_protobuf(headers: Headers) -> bool:
    """Returns whether the body is a protobuf message; else it is JSON, also without a content type.

    Raises:
      InvalidArgument: it is neither, or a web page sent it without a content type. Without asking,
        browsers let a page send forms, and bodies without a type, to any address.
    """
    content_type = headers.get("content-type", "")
    media_type = _media_type(content_type)
    untyped = not media_type and "origin" in headers
    if untyped or (media_type not in _JSON_TYPES and media_type not in _PROTOBUF_TYPES):
        raise InvalidArgument(
            f"content-type is {content_type[:80]!r}; {JSON} or {PROTOBUF} was expected"
        )
    return media_type in _PROTOBUF_TYPES


def accepts_protobuf(headers: Headers) -> bool:
    """Returns whether the answer is a message: the first form that `accept` names, else that of the
    body.
    """
    return _accepts_protobuf(headers.get("accept", ""), headers.get("content-type", ""))


@lru_cache(_CACHED)
def _accepts_protobuf(accept: str, content_type: str) -> bool:
    known = (JSON, *_PROTOBUF_TYPES)
    accepted = [each for each in map(_media_type, accept.split(",")) if each in known]
    media_type = accepted[0] if accepted else _media_type(content_type)
    return media_type in _PROTOBUF_TYPES


@lru_cache(_CACHED)
def _media_type(text: str) -> str:
    return text.partition(";")[0].strip().lower()
