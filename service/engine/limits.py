"""What is checked of requests and responses: their size, and that results are finite.

A request beyond a limit is rejected before anything of its size is allocated. How large a response
becomes is known from the request and the model before anything is computed. Sizes are those of
JSON, the larger form, so that a request is accepted or rejected whatever the transport. Numbers and
ids count with their longest text, strings of a store with their average.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.features.columns import Column
from service.config import ServiceSettings
from service.engine.calls import FILTER_DEPTH_MAX, Filter, Ids
from service.errors import FieldViolation, InvalidArgument, TooLarge

NUMBER_BYTES = 16
"""The longest float32, such as -1.2345678e-38, with its separators."""
_INTEGER_BYTES = 24
"""The longest int64, which is quoted beyond 2^53, with its separators."""
_POSITION_BYTES = 12
"""The longest position of a candidate among those sent, with its comma."""


def at_most(settings: ServiceSettings, setting: str, count: int, field: str) -> None:
    """Raises TooLarge if a field, or `request`, has more than the limit `setting` allows."""
    limit: int = getattr(settings, setting)
    if count > limit:
        size = f"{count} {setting.removeprefix('max_')}"
        raise TooLarge.of_limit(field, size, limit, setting)


def check_k(k: int, default: int, max_k: int) -> int:
    """Returns the number of results per query: `k`, or the default for 0.

    Raises:
      InvalidArgument: k is negative or over its limit.
    """
    if not 0 <= k <= max_k:
        expected = f"1 to {max_k} (max_k), or 0 for {default or 'all'}"
        raise InvalidArgument.of_field("k", k, expected)
    return k or min(default, max_k)


def check_queries(n: int, settings: ServiceSettings) -> None:
    """Rejects a request of no query, or of more than `max_queries`."""
    if n < 1:
        raise InvalidArgument.of_field("request", "no query", "at least one", "has")
    at_most(settings, "max_queries", n, "request")


def check_values(settings: ServiceSettings, columns: Iterable[Column], *ids: Ids | None) -> None:
    """Rejects a request that holds more values and ids than `max_values`."""
    total = sum([column.values.size for column in columns]) + sum(
        [each.size for each in ids if each is not None]
    )
    at_most(settings, "max_values", total, "request")


def check_depth(where: str, depth: int) -> None:
    """Rejects a filter that lies too deep in others, before it is read."""
    if depth > FILTER_DEPTH_MAX:
        raise TooLarge.of_limit(where, f"level {depth}", FILTER_DEPTH_MAX, verb="is a filter at")


def check_terms(sent: Filter, settings: ServiceSettings) -> None:
    """Rejects a filter with too many terms: each is a pass over the candidates."""
    limit = settings.max_filter_terms
    if sent.terms > limit:
        size = f"{sent.terms} conditions, circles and nested filters"
        raise TooLarge.of_limit("filter", size, limit, "max_filter_terms")


def check_rows(n: int, dim: int, where: str, settings: ServiceSettings) -> None:
    """Rejects a request whose response would have too many vectors.

    Args:
      n: The number of vectors.
      dim: The number of values of each.
      where: The field of the request that has one element per vector.
      settings: The limit.

    Raises:
      TooLarge: The vectors exceed `max_response_bytes`.
    """
    what = f"{n} vectors of {dim} numbers"
    check_bytes(n * dim * NUMBER_BYTES, what, settings, f"send fewer {where} at a time")


def check_scores(count: int, ids: Ids | None, heads: int, settings: ServiceSettings) -> None:
    """Rejects a ranking whose response would have too many scores.

    Args:
      count: The number of candidates that are returned.
      ids: The ids of all candidates, which are returned too.
      heads: The number of heads that are returned beside each score.
      settings: The limit.

    Raises:
      TooLarge: The scores exceed `max_response_bytes`.
    """
    id_bytes = 0
    if ids is not None and ids.size:
        strings = ids.dtype == object
        id_bytes = sum(map(len, ids.tolist())) // ids.size + 3 if strings else _INTEGER_BYTES
    candidate_bytes = id_bytes + _POSITION_BYTES + (1 + heads) * NUMBER_BYTES
    what = f"{count} candidates with {heads} heads"
    remedy = "lower k, or send fewer candidates or heads at a time"
    check_bytes(count * candidate_bytes, what, settings, remedy)


def check_bytes(size: int, what: str, settings: ServiceSettings, remedy: str = "") -> None:
    """Rejects a response by its size.

    Args:
      size: The number of bytes.
      what: The content of the response.
      settings: The limit.
      remedy: What the client can do.

    Raises:
      TooLarge: The size exceeds `max_response_bytes`.
    """
    limit = settings.max_response_bytes
    if size > limit:
        value = f"{what}, about {size} bytes"
        message = f"the response would have {value}; at most {limit} are sent (max_response_bytes)"
        if remedy:
            message = f"{message}; {remedy}"
        expected = f"at most {limit} bytes (max_response_bytes)"
        raise TooLarge(message, FieldViolation("response", value, expected))


class NotFinite(ArithmeticError):
    """A result holds NaN or an infinity, which have no place in JSON, and none in an order; the
    message names it.
    """


def check_finite(array: NDArray[Any], what: str) -> None:
    """Raises NotFinite if the array holds NaN or an infinity."""
    finite = np.isfinite(array)
    if np.count_nonzero(finite) < finite.size:  # counting is much cheaper than all()
        raise NotFinite(what)
