"""HTTP headers and gRPC metadata: request ids, timeouts and server timing, by the same rules in
both transports.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping

from service.errors import InvalidArgument

REQUEST_ID = "x-request-id"
TRACE_PARENT = "traceparent"
TIMEOUT_MS = "x-request-timeout-ms"
SERVER_TIMING = "server-timing"
TIMEOUT_MS_MAX = 3_600_000

_REQUEST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=@-]{0,127}", re.ASCII)
_TRACE_PARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)
_DIGITS = re.compile(r"[0-9]{1,10}", re.ASCII)


def request_id_of(request_id: str | None, trace_parent: str | None) -> str:
    """Returns the id that the answer and the log carry.

    Args:
      request_id: `x-request-id` as sent; used if it is 1 to 128 characters that are safe in a log.
      trace_parent: `traceparent` as sent; its trace id is used where there is no request id.
        Source: W3C Trace Context, https://www.w3.org/TR/trace-context/, section 3.2.

    Returns:
      One of the two, or a random id of 32 characters. A malformed id never fails a call.
    """
    if request_id is not None and _REQUEST_ID.fullmatch(request_id):
        return request_id
    traced = _TRACE_PARENT.fullmatch(trace_parent) if trace_parent else None
    if traced and set(traced[1]) != {"0"}:
        return traced[1]
    return f"{random.getrandbits(128):032x}"


def timeout_s_of(timeout_ms: str) -> float:
    """Returns the timeout that `x-request-timeout-ms` sets, in seconds.

    Raises:
      InvalidArgument: it is not a whole number of milliseconds, or is longer than an hour.
    """
    if not _DIGITS.fullmatch(timeout_ms) or int(timeout_ms) > TIMEOUT_MS_MAX:
        raise InvalidArgument(
            f"{TIMEOUT_MS} is {timeout_ms[:20]!r}; 0 to {TIMEOUT_MS_MAX} milliseconds were expected"
        )
    return int(timeout_ms) / 1000


def server_timing(phases: Mapping[str, float]) -> str:
    """Returns the text of `server-timing`: `queue;dur=0.123, lookup;dur=0.045`, durations in
    milliseconds.

    Args:
      phases: seconds by phase; another thread may still add to them after the call was abandoned.

    Source: W3C Server Timing, https://www.w3.org/TR/server-timing/, section 2.
    """
    return ", ".join([f"{name};dur={seconds * 1e3:.3f}" for name, seconds in tuple(phases.items())])
