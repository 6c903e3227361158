"""How much is parsed at a time of what a connection brings."""

from __future__ import annotations

import pytest

from service.rest.reading import step_bytes

SMALL = b"GET /livez HTTP/1.1\r\n\r\n"


@pytest.mark.parametrize(
    ("data", "left", "step"),
    [
        (SMALL, 0, len(SMALL)),
        (SMALL * 4, 0, 4 * len(SMALL)),
        (SMALL * 5, 0, 1024),
        (SMALL + b"\n" * 8000, 0, len(SMALL) + 8000),
        (SMALL + bytes(8000), 0, len(SMALL) + 8000),
        (SMALL + bytes(1 << 20), 0, 1024),
        (SMALL * 100, 50_000, 50_000),
    ],
)
def test_step_over_what_may_hold_many_requests_is_small(data: bytes, left: int, step: int) -> None:
    assert step_bytes(data, left) == step
