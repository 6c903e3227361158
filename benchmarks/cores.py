"""The host, and which of its cores serve and which make the load: of four or more, two serve and
the others make the load.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

SERVING = 2


def split(cores: Sequence[int]) -> tuple[set[int], set[int]]:
    """Returns the cores that serve and those that make the load: the same ones where there are too
    few for both.
    """
    ordered = sorted(cores)
    if len(ordered) < 2 * SERVING:
        return set(ordered), set(ordered)
    return set(ordered[:SERVING]), set(ordered[SERVING:])


_serving, _loading = split([*os.sched_getaffinity(0)])


def serve_on_few() -> str:
    """Keeps this process, and all that it starts except the load, on the serving cores; returns how
    they are split.
    """
    os.sched_setaffinity(0, _serving)
    if _loading == _serving:
        return f"{len(_serving)} cores, shared by the services and the load generator"
    return f"{len(_serving)} cores; the load generator has {len(_loading)} others"


@contextmanager
def loading() -> Iterator[None]:
    """Runs what is started in this context on the cores of the load."""
    allowed_cores = os.sched_getaffinity(0)
    # Unless serve_on_few was called, both share all cores.
    os.sched_setaffinity(0, _loading if allowed_cores == _serving else allowed_cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed_cores)


def host() -> str:
    """Returns the processor's name and second-level cache, as lscpu reports them."""
    lines = subprocess.run(
        ["lscpu"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    facts = {
        name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    return f"{facts.get('Model name', platform.machine())} (L2 {facts.get('L2 cache', 'unknown')})"
