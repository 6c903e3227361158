"""How long each phase of a call took, as both doors tell it: header and trailing metadata `server-timing`."""

from __future__ import annotations

from collections.abc import Mapping

SERVER_TIMING = "server-timing"


def timing_of(phases: Mapping[str, float]) -> str:
    """Returns the text of `server-timing`: `queue;dur=0.123, lookup;dur=0.045`, durations in milliseconds.

    Args:
      phases: seconds by phase; may still grow in another thread, if the call was given up.

    Source: W3C Server Timing, https://www.w3.org/TR/server-timing/, section 2.
    """
    return ", ".join([f"{name};dur={seconds * 1e3:.3f}" for name, seconds in tuple(phases.items())])
