"""Limits of requests. A request beyond a limit is rejected before anything of its size is
allocated.
"""

from __future__ import annotations

from collections.abc import Iterable

from bundle.features.columns import Column
from service.config import ServiceSettings
from service.engine.calls import FILTER_DEPTH_MAX, Filter, Ids
from service.errors import InvalidArgument, TooLarge


def at_most(settings: ServiceSettings, setting: str, count: int, where: str) -> None:
    """Raises TooLarge if `where`, a request or a field, has more than the limit
    `setting` allows.
    """
    limit: int = getattr(settings, setting)
    if count > limit:
        what = setting.removeprefix("max_")
        raise TooLarge(f"{where} has {count} {what}; at most {limit} are accepted ({setting})")


def check_k(k: int, default: int, max_k: int) -> int:
    """Returns the number of results per query: `k`, or the default for 0.

    Raises:
      InvalidArgument: k is negative or over its limit.
    """
    if not 0 <= k <= max_k:
        raise InvalidArgument(
            f"k is {k}; 1 to {max_k} (max_k), or 0 for {default or 'all'}, was expected"
        )
    return k or min(default, max_k)


def check_queries(n: int, settings: ServiceSettings) -> None:
    """Rejects a request of no query, or of more than `max_queries`."""
    if n < 1:
        raise InvalidArgument("the request has no query")
    at_most(settings, "max_queries", n, "the request")


def check_values(settings: ServiceSettings, columns: Iterable[Column], *ids: Ids | None) -> None:
    """Rejects a request that holds more values and ids than `max_values`."""
    total = sum([column.values.size for column in columns]) + sum(
        [each.size for each in ids if each is not None]
    )
    at_most(settings, "max_values", total, "the request, ids included,")


def check_depth(where: str, depth: int) -> None:
    """Rejects a filter that lies too deep in others, before it is read."""
    if depth > FILTER_DEPTH_MAX:
        raise TooLarge(f"{where} is a filter at level {depth}; {FILTER_DEPTH_MAX} are accepted")


def check_terms(sent: Filter, settings: ServiceSettings) -> None:
    """Rejects a filter with too many terms: each is a pass over the candidates."""
    limit = settings.max_filter_terms
    if sent.terms > limit:
        raise TooLarge(
            f"filter has {sent.terms} conditions, circles and nested filters; at most {limit} are "
            "accepted (max_filter_terms)"
        )
