"""Inputs that several features read, and features that read inputs of contexts and of candidates
together.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from bundle.format.manifest import CrossedIds, CrossKey, DenseFeature, EmbeddedFeature, Feature
from service.errors import InvalidArgument
from tests.bundles.small import GENRES
from tests.units.service import reference
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
NUMBERED: dict[str, Feature] = {
    "hour": DenseFeature(kind="dense", role="context", inputs=("user",))
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


def test_input_read_as_id_and_as_number_is_sent_once(load: Load) -> None:
    service = load(features=NUMBERED)
    small = service.small
    result = service.rank(context={"user": column(3)}, candidate_ids=small.ids[:4])
    expected = [
        reference.ranked(small, movie, 3, hour=3.0)["score"] for movie in small.ids[:4].tolist()
    ]
    np.testing.assert_allclose(result.scores, expected, 1e-4, 1e-4)
    vectors = service.embed("query", {"user": column(3, 5)}).vectors
    for vector, user in zip(vectors, (3, 5), strict=True):
        np.testing.assert_allclose(
            vector, reference.query_vector(small, user, hour=float(user)), 1e-4, 1e-4
        )
    with pytest.raises(InvalidArgument, match="has the unknown name 'hour'"):
        service.rank(context={"user": column(3), "hour": column(1.0)}, candidate_ids=small.ids[:4])
