"""Which cores serve, and which make the load: of four or more, two serve and others make the load."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

SERVING = 2
"""What workloads, peers and aims are made for."""


def dealt(cores: Sequence[int]) -> tuple[set[int], set[int]]:
    """Returns the cores that serve and those that make the load: the same where there are too few for both."""
    some = sorted(cores)
    return (set(some[:SERVING]), set(some[SERVING:])) if len(some) >= 2 * SERVING else (set(some), set(some))


_serving, _loading = dealt([*os.sched_getaffinity(0)])


def serve_on_few() -> str:
    """Leaves this process, and all that it starts but the load, the cores that serve; returns what to tell of that."""
    os.sched_setaffinity(0, _serving)
    if _loading == _serving:
        return f"{len(_serving)} cores, which the load comes from, too"
    return f"{len(_serving)} cores; the load comes from {len(_loading)} others"


@contextmanager
def loading() -> Iterator[None]:
    """What is started meanwhile makes the load."""
    own = os.sched_getaffinity(0)
    # Where nobody has dealt them, all may share all.
    os.sched_setaffinity(0, _loading if own == _serving else own)
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)
