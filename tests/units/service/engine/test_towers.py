"""A ranking tower in parts: what runs, and how often."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.units.service.engine.served import Served, column

Load = Callable[..., Served]

ALL = ("context", "trunk", "score", "watch", "rating")
CONTEXT = {
    "user": column(3, 8, 999),
    "liked": column(1007, 1014, 1028, offsets=[0, 2, 2, 3], weights=[2.0, -0.5, 1.0]),
    "recent": column(1007, 1014, offsets=[0, 0, 1, 2]),
    "hour": column(3.0, 7.0, 9.0),
    "mood": column(0.1, 0.2, 0.3, 0.4, 0.5, 0.6),
}
REQUEST: dict[str, Any] = {
    "context": CONTEXT,
    "candidate_ids": np.array([1000, 1049, 1007, 1049, 1210, 1273]),
    "offsets": np.array([0, 3, 3, 6]),
}


def rank(service: Served, **request: Any) -> Any:
    return service.rank(**{**REQUEST, **request})


def test_rank_many_candidates_in_parts_and_blocks_has_the_same_bits(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = load(parts=True)
    request = {"context": {"user": column(1)}, "candidate_ids": service.small.ids, "offsets": None}
    whole = rank(service, **request)
    monkeypatch.setattr("service.engine.towers._ROWS_MAX", 7)
    blocks = rank(service, **request)
    assert blocks.scores.tobytes() == whole.scores.tobytes()
