"""How many cases a test draws at random, and from which seeds."""

from __future__ import annotations

import secrets

import pytest

THOROUGH = 10
"""Times as many cases that a thorough run draws."""


def seeds(request: pytest.FixtureRequest, cases: int, first: int) -> range:
    """Returns a seed for each case, by which a failure can be repeated.

    Args:
      request: Of the test.
      cases: Their number.
      first: The first seed. With `--thorough`, seeds begin anywhere and are ten times as many.
    """
    if request.config.getoption("--thorough"):
        first = secrets.randbits(32)
        cases *= THOROUGH
    return range(first, first + cases)
