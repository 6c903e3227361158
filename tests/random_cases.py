"""How many cases a test tries."""

from __future__ import annotations

import secrets

import pytest


def seeds(request: pytest.FixtureRequest, cases: int, first: int) -> range:
    """Returns a seed for each case, by which a failure can be repeated.

    Args:
      request: Of the test.
      cases: Their number.
      first: The first seed. With `--thorough N`, seeds begin anywhere and are N times as many.
    """
    times = request.config.getoption("--thorough")
    if times:
        first = secrets.randbits(32)
        cases *= times
    return range(first, first + cases)


def moments(request: pytest.FixtureRequest, apart: int) -> range:
    """Returns the numbers of the operations before which a run is killed, from the first on; those
    beyond its last one kill nothing.

    Args:
      request: Of the test.
      apart: Every which operation. With `--thorough`, it is each one.
    """
    return range(1, 1000, 1 if request.config.getoption("--thorough") else apart)
