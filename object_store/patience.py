"""Repeats requests that a store rejects for now, with pauses that grow."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from object_store.store_errors import StoreUnavailable, as_os_errors

log = logging.getLogger("rowcast.object_store")

PATIENCE_S = 300.0
"""The time for which a request is repeated. A store that throttles recovers within seconds; one
that is restarted, within minutes.
"""
FIRST_PATIENCE_S = 20.0
"""The time for which a request is repeated to a store that has never responded: its address is
probably wrong.
"""
_PAUSE_S = 0.5
_PAUSE_MAX_S = 30.0

_responding: set[str] = set()
"""Stores (`s3://bucket`) that responded to this process."""

Result = TypeVar("Result")


def patiently(url: str, request: Callable[[], Result]) -> Result:
    """Sends a request; repeats it while the store throttles or its connections are lost.

    Args:
      url: The file or directory that the request is about.
      request: A function that sends the whole request; it may be called any number of times.

    Raises:
      StoreUnavailable: The store was not available for PATIENCE_S; names the URL.
      OSError: The request failed for another reason; names the URL.
    """
    store = "/".join(url.split("/", 3)[:3])
    began = time.monotonic()
    pause_s = _PAUSE_S
    tries = 1
    while True:
        try:
            with as_os_errors(url):
                result = request()
        except StoreUnavailable as problem:
            waited_s = time.monotonic() - began
            if problem.responded:
                _responding.add(store)
            patience_s = FIRST_PATIENCE_S
            if store in _responding:
                patience_s = PATIENCE_S
            if waited_s + pause_s > patience_s:
                text = f"{problem.strerror} ({tries} tries in {waited_s:.0f} s)"
                raise StoreUnavailable(problem.errno, text, url) from problem
            log.warning("%s: %s; trying again within %.1f s", url, problem.strerror, pause_s)
        except OSError:
            _responding.add(store)
            raise
        else:
            _responding.add(store)
            return result

        # Random, so that the workers of a job do not come back all at once.
        time.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
        pause_s = min(2 * pause_s, _PAUSE_MAX_S)
        tries += 1
