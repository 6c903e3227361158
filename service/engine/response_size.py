"""How large a response becomes, known from the request and the model before anything is computed.

Sizes are those of JSON, the larger form, so that a request is accepted or rejected whatever the
transport. Numbers and ids count with their longest text, strings of a store with their average.
"""

from __future__ import annotations

from service.config import ServiceSettings
from service.engine.calls import Ids
from service.errors import TooLarge

NUMBER_BYTES = 16
"""The longest float32, such as -1.2345678e-38, with its separators."""
_INTEGER_BYTES = 24
"""The longest int64, which is quoted beyond 2^53, with its separators."""
_POSITION_BYTES = 12
"""The longest position of a candidate among those sent, with its comma."""


def check_rows(n: int, dim: int, where: str, settings: ServiceSettings, requests: int) -> None:
    """Rejects a request whose response would have too many vectors.

    Args:
      n: The number of vectors.
      dim: The number of values of each.
      where: The field of the request that has one element per vector.
      settings: The limit.
      requests: As of `check_bytes`.

    Raises:
      TooLarge: The vectors exceed `max_response_bytes`.
    """
    what = f"{n} vectors of {dim} numbers"
    check_bytes(n * dim * NUMBER_BYTES, what, settings, requests, f"send fewer {where} at a time")


def check_scores(
    count: int, ids: Ids | None, heads: int, settings: ServiceSettings, requests: int
) -> None:
    """Rejects a ranking whose response would have too many scores.

    Args:
      count: The number of candidates that are returned.
      ids: The ids of all candidates, which are returned too.
      heads: The number of heads that are returned beside each score.
      settings: The limit.
      requests: As of `check_bytes`.

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
    check_bytes(count * candidate_bytes, what, settings, requests, remedy)


def check_bytes(
    size: int, what: str, settings: ServiceSettings, requests: int = 1, remedy: str = ""
) -> None:
    """Rejects a response by its size.

    Args:
      size: The number of bytes.
      what: The content of the response.
      settings: The limit.
      requests: The number of requests that were merged into one; each has a response of its own.
      remedy: What the client can do.

    Raises:
      TooLarge: The size exceeds `max_response_bytes`.
    """
    limit = settings.max_response_bytes * requests
    if size > limit:
        message = (
            f"the response would have {what}, about {size} bytes; at most {limit} are sent "
            "(max_response_bytes)"
        )
        raise TooLarge(f"{message}; {remedy}" if remedy else message)
