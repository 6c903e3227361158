"""HTTP headers and gRPC metadata: request ids, timeouts and server timing, by the same rules in
both transports; and the content types of HTTP.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache

from service.errors import InvalidArgument

REQUEST_ID = "x-request-id"
TRACE_PARENT = "traceparent"
TIMEOUT_MS = "x-request-timeout-ms"
SERVER_TIMING = "server-timing"
TIMEOUT_MS_MAX = 3_600_000
"""Maximum timeout of a request: an hour, as the maximum of `request_timeout_s`."""
JSON = "application/json"
PROTOBUF = "application/x-protobuf"
_JSON_TYPES = (JSON, "")
_PROTOBUF_TYPES = (PROTOBUF, "application/protobuf")
_BODY_TYPES = (*_JSON_TYPES, *_PROTOBUF_TYPES)
_CHARSETS = frozenset({"", "utf-8", "utf8", "us-ascii"})
_CACHED = 32
"""Number of different headers whose meaning is remembered: clients send few different ones."""
_CACHED_CHARS_MAX = 256
"""Maximum length of headers that are remembered, so that hostile clients cannot fill the memory."""

Headers = Mapping[str, str]
"""Values by name in lower case."""
JSON_LENGTH = "inference-header-content-length"
"""The size of the JSON of a body in front of other bytes, in the Open Inference Protocol."""
_NAMES = {
    name.encode(): name
    for name in (
        REQUEST_ID,
        TIMEOUT_MS,
        TRACE_PARENT,
        JSON_LENGTH,
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

# Visible ASCII, without what JSON escapes, and without commas, which separate values of a header.
_REQUEST_ID = re.compile(r"[!#-+\-.-\[\]-~]{1,128}", re.ASCII)
_EXPECTED_ID = "1 to 128 characters of ASCII without spaces, double quotes and backslashes"
_TRACE_PARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)
_WEIGHT = re.compile(r"0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?", re.ASCII)
_DIGITS = re.compile(r"[0-9]{1,10}", re.ASCII)


def request_id_of(request_id: str | None, trace_parent: str | None) -> str:
    """Returns the id that the response and the log carry.

    Args:
      request_id: `x-request-id` as sent; used if it is 1 to 128 characters that are safe in a log.
        Where nothing can be rejected any more, another one is replaced; see `check_request_id`.
      trace_parent: `traceparent` as sent; its trace id is used where there is no request id.
        Source: W3C Trace Context, https://www.w3.org/TR/trace-context/, section 3.2.

    Returns:
      One of the two, or a random id of 32 characters.
    """
    if request_id is not None and _REQUEST_ID.fullmatch(request_id):
        return request_id
    if trace_parent:
        # An id of zeros is invalid by the specification.
        trace = _TRACE_PARENT.fullmatch(trace_parent)
        if trace and set(trace[1]) != {"0"}:
            return trace[1]
    return f"{random.getrandbits(128):032x}"


def check_request_id(headers: Headers, request_id: str) -> None:
    """Rejects a malformed id of a client, who would search the logs for it in vain.

    Args:
      headers: The headers of the request.
      request_id: What `request_id_of` returned for them.

    Raises:
      InvalidArgument: `x-request-id` is malformed.
    """
    sent_id = headers.get(REQUEST_ID)
    if not sent_id or sent_id == request_id:
        return
    # A list of ids is not the client's mistake: a proxy has added its own.
    if "," not in sent_id:
        raise InvalidArgument.of_field(REQUEST_ID, repr(sent_id[:20]), _EXPECTED_ID)


def timeout_s_of(timeout_ms: str) -> float:
    """Returns the timeout that `x-request-timeout-ms` sets, in seconds.

    Raises:
      InvalidArgument: It is not a whole number of milliseconds, or is longer than an hour.
    """
    if not _DIGITS.fullmatch(timeout_ms) or int(timeout_ms) > TIMEOUT_MS_MAX:
        expected = f"a number of milliseconds from 0 to {TIMEOUT_MS_MAX}"
        raise InvalidArgument.of_field(TIMEOUT_MS, repr(timeout_ms[:20]), expected)
    return int(timeout_ms) / 1000


def deadline_of(headers: Headers, timeout_s_max: float) -> float:
    """Returns the deadline of a request that begins now, on the clock of `time.monotonic()`.

    Args:
      headers: The headers of the request, of which `x-request-timeout-ms` counts.
      timeout_s_max: The maximum time for a request.

    Raises:
      InvalidArgument: See `timeout_s_of`.
    """
    timeout_s = timeout_s_max
    if TIMEOUT_MS in headers:
        timeout_s = min(timeout_s, timeout_s_of(headers[TIMEOUT_MS]))
    return time.monotonic() + timeout_s


def server_timing(phases: Mapping[str, float]) -> str:
    """Returns the text of `server-timing`: `queue;dur=0.123, lookup;dur=0.045`, durations in
    milliseconds.

    Args:
      phases: The seconds of each phase.

    Source: W3C Server Timing, https://www.w3.org/TR/server-timing/, section 2.
    """
    # A copy: another thread may still add phases after the call was abandoned.
    return ", ".join([f"{name};dur={seconds * 1e3:.3f}" for name, seconds in tuple(phases.items())])


def read_headers(raw: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Returns the headers of an ASGI scope that the service reads; one that comes more than once is
    the list of its values.
    """
    headers: dict[str, str] = {}
    for key, value in raw:
        if key in _NAMES:
            name = _NAMES[key]
            text = value.decode("latin-1")
            if name in headers:
                text = f"{headers[name]}, {text}"
            headers[name] = text
    return headers


def is_protobuf(headers: Headers) -> bool:
    """Returns whether the body is a protobuf message; else it is JSON, also without a content type.

    Raises:
      InvalidArgument: The body is neither, or a web page sent it without a content type, or it is
        JSON in another charset than UTF-8.
    """
    media_type = check_content_type(headers, _BODY_TYPES, f"{JSON} or {PROTOBUF}")
    return media_type in _PROTOBUF_TYPES


def check_content_type(headers: Headers, accepted: Collection[str], expected: str) -> str:
    """Rejects a body of another declared type; returns the type without its parameters.

    Args:
      headers: The headers of the request.
      accepted: The media types of bodies; "" for those without a type.
      expected: The accepted types, as the error names them.

    Raises:
      InvalidArgument: The body has another type, or a web page sent it without a type, or it is
        JSON in another charset than UTF-8.
    """
    content_type = headers.get("content-type", "")
    media_type = media_type_of(content_type)
    # Browsers let a page send forms, and bodies without a type, to any address without a check by
    # the service. Only they send an origin.
    is_untyped = not media_type and "origin" in headers
    if is_untyped or media_type not in accepted:
        raise InvalidArgument.of_field("content-type", repr(content_type[:80]), expected)
    if media_type == JSON and media_type != content_type:
        charset = _parameter(content_type, "charset")
        if charset not in _CHARSETS:
            raise InvalidArgument.of_field(
                "content-type", repr(charset[:40]), "JSON in utf-8", "names the charset"
            )
    return media_type


def accepts_protobuf(headers: Headers) -> bool:
    """Returns whether the response is a protobuf message: the form that `accept` prefers, of equal
    ones the first, else that of the body.
    """
    accept = headers.get("accept", "")
    content_type = headers.get("content-type", "")
    if len(accept) + len(content_type) > _CACHED_CHARS_MAX:
        return _names_protobuf(accept, content_type)
    return _names_protobuf_cached(accept, content_type)


def _names_protobuf(accept: str, content_type: str) -> bool:
    # Other types, such as */*, leave the choice to the service.
    prefers_protobuf = media_type_of(content_type) in _PROTOBUF_TYPES
    preference = 0.0
    for accepted in accept.split(","):
        media_type = media_type_of(accepted)
        weight = _weight(accepted)
        # The weight 0 means: not this form.
        if media_type in {JSON, *_PROTOBUF_TYPES} and weight > preference:
            prefers_protobuf = media_type in _PROTOBUF_TYPES
            preference = weight
    return prefers_protobuf


_names_protobuf_cached = lru_cache(_CACHED)(_names_protobuf)


def _weight(accepted: str) -> float:
    """Returns the weight of an element of `accept`; 0 if it is no weight (RFC 9110, section
    12.4.2).
    """
    weight = _parameter(accepted, "q") or "1"
    if not _WEIGHT.fullmatch(weight):
        return 0.0
    return float(weight)


def _parameter(element: str, parameter_name: str) -> str:
    """Returns a parameter of an element of a header in lower case; "": it has none."""
    for parameter in element.split(";")[1:]:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == parameter_name:
            return value.strip().strip('"').lower()
    return ""


def media_type_of(text: str) -> str:
    """Returns the media type of a header, in lower case and without parameters."""
    return text.partition(";")[0].strip().lower()
