"""How a limit is told when a request is over it."""

from __future__ import annotations

from service.errors import InvalidArgument, TooLarge
from service.settings import ServiceSettings


def at_most(value: int, limit: int, what: str, setting: str) -> None:
    """Refuses more than a limit.

    Args:
      what: what is counted, e.g. `queries in one request`.
      setting: name of the setting that holds the limit.
    Raises:
      TooLarge: names the value and the limit.
    """
    if value > limit:
        raise TooLarge(f"{value} {what}; at most {limit} are taken ({setting})")


def wanted(k: int, default: int, k_max: int) -> int:
    """Returns the neighbors wanted per query: `k`, or the default for 0.

    Raises:
      InvalidArgument: k is negative or over its limit.
    """
    if not 0 <= k <= k_max:
        raise InvalidArgument(f"k is {k}; 1 to {k_max} are taken (k_max), 0 stands for {default}")
    return k or min(default, k_max)


def check_queries(n: int, settings: ServiceSettings) -> None:
    """Refuses a request of no query, or of more than `queries_max`."""
    if n < 1:
        raise InvalidArgument("the request holds no query")
    at_most(n, settings.queries_max, "queries in one request", "queries_max")
