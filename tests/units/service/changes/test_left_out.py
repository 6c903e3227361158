"""A candidate that cannot be scored is left out, and changes no bit of the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rowcast_client import Client

from tests.bundles.small import SmallBundle
from tests.units.service.changes.making import candidate, change
from tests.units.service.running import RunningService

POISON = 9001
DIM = 8
CONTEXTS = [{"user": 7, "hour": 9.0}, {"user": 8, "hour": 21.0}]


def poisoned(**features: Any) -> dict[str, Any]:
    """Returns a candidate whose vector was sent, so that no tower has read its features."""
    item = candidate(POISON, vectors={"movies": [0.1] * DIM})
    item["features"] |= features
    return item


@pytest.mark.parametrize(
    ("features", "formula", "reason"),
    [
        ({"movie": 7}, "", "features"),
        ({"year": 3e38}, "log(1e30 - rating) + log(1e30 + rating)", "score"),
    ],
)
def test_candidate_that_cannot_be_scored_is_left_out(
    features: dict[str, Any],
    formula: str,
    reason: str,
    write: Callable[..., SmallBundle],
    serve: Callable[..., RunningService],
) -> None:
    write(keep=60)
    service = serve()
    sources: list[Any] = [{"ids": [POISON, 1000, 1007]}, {"index": "movies"}]
    with Client(service.http) as client:
        before = client.recommend(CONTEXTS, k=40, pool_size=60, formula=formula)
        change(service, "candidates/upsert", poisoned(**features))
        after = client.recommend(CONTEXTS, k=41, pool_size=60, formula=formula)
        merged = client.recommend(CONTEXTS[0], k=41, sources=sources, formula=formula)
        retrieved = client.retrieve(CONTEXTS[0], k=41)
    for scored, expected in zip(after, before, strict=True):
        assert list(scored.ids) == list(expected.ids)
        np.testing.assert_array_equal(scored.scores, expected.scores)
    assert after.degraded
    assert "2 of 82 candidates are left out, because the" in after.degraded_reason
    assert POISON not in merged[0].ids
    # Its vector is sound, and a retrieval reads nothing else.
    assert POISON in retrieved[0].ids
    assert service.value("rowcast_candidates_left_out_total", reason=reason) == 3
