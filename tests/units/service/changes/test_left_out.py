"""A candidate that cannot be scored is left out, and changes no bit of the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rowcast_client import Client

from tests.bundles.small import SmallBundle
from tests.e2e.process import until
from tests.units.service.changes.making import candidate, change
from tests.units.service.running import RunningService

POISON = 9001
CONTEXTS = [{"user": 7, "hour": 9.0}, {"user": 8, "hour": 21.0}]
BETWEEN = "log(50 - rating) + log(50 + rating)"
"""A formula that has no value for the ratings of some years."""


@pytest.mark.parametrize("has_shards", [False, True])
@pytest.mark.parametrize(
    ("features", "formula", "reason"),
    [({"movie": 1000 + 7 * 50}, "", "features"), ({"year": 1e6}, BETWEEN, "score")],
)
def test_candidate_that_cannot_be_scored_is_left_out(
    features: dict[str, Any],
    formula: str,
    reason: str,
    has_shards: bool,
    write: Callable[..., SmallBundle],
    serve: Callable[..., RunningService],
) -> None:
    write(keep=60, partitions=2, size=60)
    options: dict[str, Any] = {}
    if has_shards:
        shards = [serve(shard=f"{number}/2", shard_min_bytes=1) for number in (1, 2)]
        options = {
            "shard_addresses": tuple([shard.grpc for shard in shards]),
            "shard_min_bytes": 1,
        }
    service = serve(**options)
    item = candidate(POISON)
    item["features"] |= features
    change(service, "candidates/upsert", item)
    # The next version has fewer movies, and rejects those that it does not know.
    write(keep=60, partitions=2, version=2)

    sources: list[Any] = [{"ids": [POISON, 1000, 1007]}, {"index": "movies"}]
    wanted: dict[str, Any] = {"k": 41, "pool_size": 60, "formula": formula}
    with Client(service.http) as client:
        until(lambda: client.recommend(CONTEXTS[0], **wanted).version == 2)
        after = client.recommend(CONTEXTS, **wanted)
        excluded = client.recommend(CONTEXTS, exclude_ids=[[POISON], [POISON]], **wanted)
        merged = client.recommend(CONTEXTS[0], k=41, sources=sources, formula=formula)
        ranked = client.rank(CONTEXTS, candidate_ids=[[1000, POISON], [1007]])
    for scored, expected in zip(after, excluded, strict=True):
        assert scored.ids.size == 40
        assert list(scored.ids) == list(expected.ids)
        np.testing.assert_array_equal(scored.scores, expected.scores)
    assert (after.degraded, excluded.degraded) == (True, False)
    assert "2 of 82 candidates are left out, because the" in after.degraded_reason
    assert POISON not in merged[0].ids
    # A ranking was sent its id, and nothing of its features.
    failed = []
    ids = [1000, POISON, 1007]
    if reason == "features":
        failed = [(0, 1)]
        ids = [1000, 1007]
    assert [(candidate.context, candidate.position) for candidate in ranked.failed] == failed
    assert np.concatenate([records.ids for records in ranked]).tolist() == ids
    assert service.value("rowcast_candidates_left_out_total", reason=reason) >= 3
