"""Inputs that several features read, and features that read inputs of contexts and of candidates
together.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from bundle.format.manifest import CrossedIds, CrossKey, EmbeddedFeature, Feature
from tests.bundles.small import GENRES
from tests.units.service.engine.served import Served, column

Load = Callable[..., Served]

CROSSED: dict[str, Feature] = {
    "genres": EmbeddedFeature(
        kind="bag",
        table="genres",
        role="candidate",
        combiner="sum",
        inputs=("device", "genres"),
        ids=CrossedIds(
            keys=(
                CrossKey(dtype="string", default="web"),
                CrossKey(dtype="string", role="candidate"),
            ),
            buckets=GENRES,
        ),
    )
}


@pytest.mark.parametrize("parts", [False, True])
def test_rank_crosses_context_and_candidate_for_each_candidate(load: Load, parts: bool) -> None:
    service = load(features=CROSSED, parts=parts)
    movies = service.small.ids[[2, 5, 8, 11]]
    context = {"user": column(3, 8), "device": column("phone", "tv")}
    scores = service.rank(context=context, candidate_ids=movies, offsets=np.array([0, 1, 4])).scores
    phone = service.rank(
        context={"user": column(3), "device": column("phone")}, candidate_ids=movies[:1]
    ).scores
    other_features = {
        device: service.rank(
            context={"user": column(8), "device": column(device)}, candidate_ids=movies[1:]
        ).scores
        for device in ("tv", "web")
    }
    np.testing.assert_allclose(scores, [*phone, *other_features["tv"]], 1e-5, 1e-5)
    assert not np.allclose(other_features["tv"], other_features["web"])
