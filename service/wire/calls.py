"""Who asks and until when: request ids and deadlines, by the same rules at both doors."""

from __future__ import annotations

import random
import re

from service.errors import InvalidArgument

REQUEST_ID = "x-request-id"
TRACE_PARENT = "traceparent"
TIMEOUT_MS = "x-request-timeout-ms"
TIMEOUT_MS_MAX = 3_600_000

_REQUEST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=@-]{0,127}", re.ASCII)
_TRACE_PARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)
_DIGITS = re.compile(r"[0-9]{1,10}", re.ASCII)


def request_id_of(request_id: str | None, trace_parent: str | None) -> str:
    """Returns the id that answer and log carry.

    Args:
      request_id: `x-request-id` as sent; taken if it is 1 to 128 harmless characters, so that it is safe in a log.
      trace_parent: `traceparent` as sent; its trace id is taken where there is no request id.
        Source: W3C Trace Context, https://www.w3.org/TR/trace-context/, section 3.2.

    Returns:
      One of the two, or a new one. A bad id never fails a call.
    """
    if request_id is not None and _REQUEST_ID.fullmatch(request_id):
        return request_id
    traced = _TRACE_PARENT.fullmatch(trace_parent) if trace_parent is not None else None
    if traced and set(traced[1]) != {"0"}:
        return traced[1]
    return new_request_id()


def new_request_id() -> str:
    """Returns an id like no other, 32 characters."""
    return f"{random.getrandbits(128):032x}"


def timeout_s_of(timeout_ms: str | None) -> float | None:
    """Returns the seconds that a caller waits, as its `x-request-timeout-ms` says; None if it says nothing.

    Raises:
      InvalidArgument: it is no whole number of milliseconds, or beyond an hour.
    """
    if timeout_ms is None:
        return None
    if not _DIGITS.fullmatch(timeout_ms) or int(timeout_ms) > TIMEOUT_MS_MAX:
        raise InvalidArgument(f"{TIMEOUT_MS} is {timeout_ms[:20]!r}; 0 to {TIMEOUT_MS_MAX} milliseconds were expected")
    return int(timeout_ms) / 1000
