"""Turns the exceptions of stores' libraries into OSError, of which some are transient."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
"""The extra of rowcast that installs the library of a scheme."""
_TEXT_MAX = 300
"""The maximum number of characters of a library's message that are repeated: some contain whole
responses.
"""

_ERROR_NUMBERS: dict[type[OSError], int] = {
    FileNotFoundError: errno.ENOENT,
    FileExistsError: errno.EEXIST,
    PermissionError: errno.EACCES,
    IsADirectoryError: errno.EISDIR,
    NotADirectoryError: errno.ENOTDIR,
}

_TRANSIENT_NUMBERS = {
    errno.EBUSY,  # s3fs: 503 SlowDown, 409
    errno.EREMOTEIO,  # s3fs: 500
    errno.EPIPE,
    errno.ECONNABORTED,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.ETIMEDOUT,
}
_TRANSIENT_CODES = {
    "408",
    "429",
    "500",
    "502",
    "503",
    "504",
    "ConditionalRequestConflict",
    "InternalError",
    "OperationAborted",
    "RequestLimitExceeded",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
}
"""HTTP statuses, and the codes that S3 and stores like it send beside them."""

_LOST_CONNECTIONS = {
    "ChunkedEncodingError",  # requests
    "ClientConnectionError",  # aiohttp
    "ClientPayloadError",
    "ConnectionError",  # botocore, requests
    "HTTPClientError",  # botocore
    "IncompleteRead",
    "IncompleteReadError",
    "ProxyError",
    "ResponseParserError",
    "ResponseStreamingError",
}
"""The exceptions of lost connections, by the names of their classes: no library of a store is
imported where another one is used.
"""


class StoreUnavailable(OSError):
    """The store throttles, fails, or cannot be reached: the same request may succeed later.

    Attributes:
      responded: Whether the store itself responded, so that its address is right.
    """

    responded = False


@contextmanager
def as_os_errors(url: str) -> Iterator[None]:
    """Turns whatever a store's library raises into an OSError that has a number, a sentence and the
    URL.

    Raises:
      StoreUnavailable: The same request may succeed later.
      OSError: It will not.
    """
    try:
        yield
    except ImportError as problem:
        text = str(problem).splitlines()[0]
        extra = _EXTRAS.get(url.partition("://")[0])
        if extra:
            text += f"; run `pip install 'rowcast[{extra}]'`"
        raise OSError(errno.EPROTONOSUPPORT, text, url) from problem
    except Exception as problem:  # libraries of stores raise what they like
        if _is_transient(problem):
            unavailable = StoreUnavailable(errno.EBUSY, _description(problem), url)
            unavailable.responded = _responded(problem)
            raise unavailable from problem
        if isinstance(problem, OSError):
            number = problem.errno or _ERROR_NUMBERS.get(type(problem), errno.EIO)
            text = problem.strerror or ""
            if not text and number == errno.EIO:
                text = str(problem) or "it failed"
            # OSError becomes an instance of the class that the number means.
            raise OSError(number, text or os.strerror(number), url) from problem
        text = _description(problem)
        if "Credentials" in type(problem).__name__:
            text += (
                "; the environment gives them (AWS_PROFILE, GOOGLE_APPLICATION_CREDENTIALS, ...)"
            )
        raise OSError(errno.EIO, text, url) from problem


def _description(problem: BaseException) -> str:
    """Returns a failure in a line of at most 300 characters and the name of its class."""
    if isinstance(problem, OSError) and problem.strerror:
        return _line(problem.strerror)
    return f"{type(problem).__name__}: {_line(str(problem))}".rstrip(": ")


def _line(text: str) -> str:
    return " ".join(text.split())[:_TEXT_MAX]


def _is_transient(problem: BaseException) -> bool:
    """Returns whether a failure is the store's or the network's state, not the request's fault."""
    if isinstance(problem, ConnectionError | TimeoutError):
        return True
    if isinstance(problem, OSError) and problem.errno in _TRANSIENT_NUMBERS:
        return True
    if _LOST_CONNECTIONS & {kind.__name__ for kind in type(problem).__mro__}:
        return True
    return bool(_TRANSIENT_CODES & {*_codes(problem), *_codes(problem.__cause__)})


def _responded(problem: BaseException) -> bool:
    """Returns whether the store itself responded with a failure."""
    is_rejection = isinstance(problem, OSError) and problem.errno in (errno.EBUSY, errno.EREMOTEIO)
    return is_rejection or bool(_codes(problem) | _codes(problem.__cause__))


def _codes(problem: BaseException | None) -> set[str]:
    """Returns the codes that a library's exception carries: botocore's, gcsfs's, aiohttp's."""
    response: Any = getattr(problem, "response", None)
    error = response.get("Error", {}) if isinstance(response, dict) else {}
    codes = (error.get("Code"), getattr(problem, "code", None), getattr(problem, "status", None))
    return {str(code) for code in codes if code is not None}
