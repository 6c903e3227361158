"""Lists of neighbors: what an explanation counts, and pages of a pool."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from tests.bundles.small import SmallBundle
from tests.units.service.changes.making import deny, responds
from tests.units.service.running import RunningService

Serve = Callable[..., RunningService]
Write = Callable[..., SmallBundle]
CHOSEN: tuple[tuple[int, ...], ...] = ((), (3,), (2, 3), (4, 36, 37), (0, 3, 36, 39))
"""Positions of candidates that are denied or excluded."""


def test_explanation_counts_what_is_allowed(write: Write, serve: Serve) -> None:
    """Denied and excluded candidates count once each, whether or not they match or coincide."""
    ids = write().ids.tolist()
    service = serve()
    body: dict[str, Any] = {"vectors": [[1.0] * 8], "k": 40, "explain": True}
    for denied in CHOSEN:
        deny(service, *[ids[position] for position in denied])
        for excluded, year, exact in product(CHOSEN, (1990, 2020), (False, True)):
            excluded_ids = [ids[position] for position in excluded]
            options: dict[str, Any] = {"exact": exact, "exclude_ids": excluded_ids}
            options["filter"] = {"year": {"ge": year}}
            result = responds(service, "retrieve", **body, **options)
            count = len(result["ids"])
            explanation = result["explanation"]
            assert explanation["matches"] == count, (denied, options)
            assert explanation["selectivity"] == pytest.approx(count / 40)
