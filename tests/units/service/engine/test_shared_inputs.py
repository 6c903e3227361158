"""Features that read inputs of contexts and of candidates together."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from bundle.format.manifest import EmbeddedFeature, Feature, JointInput
from tests.bundles.small import GENRES, SmallBundle
from tests.id_graphs import crossed_ids
from tests.units.service.changes.making import responds
from tests.units.service.running import RunningService

CROSSED: dict[str, Feature] = {
    "genres": EmbeddedFeature(
        kind="bag",
        table="genres",
        role="candidate",
        combiner="sum",
        inputs=("device", "genres"),
        joint=(JointInput(default="web"), JointInput(role="candidate")),
        ids=crossed_ids(("string", "string"), GENRES),
    )
}


@pytest.mark.parametrize("parts", [False, True])
def test_rank_crosses_context_and_candidate_for_each_candidate(
    parts: bool, write: Callable[..., SmallBundle], serve: Callable[..., RunningService]
) -> None:
    movies = write(features=CROSSED, parts=parts).ids[[2, 5, 8, 11]].tolist()
    service = serve()
    contexts = [{"user": 3, "device": "phone"}, {"user": 8, "device": "tv"}]
    chosen = [movies[:1], movies[1:]]
    alone = [
        responds(service, "rank", context=context, candidate_ids=ids)["scores"]
        for context, ids in zip(contexts, chosen, strict=True)
    ]
    parts_of_both = [
        {"context": context, "candidate_ids": ids}
        for context, ids in zip(contexts, chosen, strict=True)
    ]
    together = responds(service, "rank", requests=parts_of_both)["results"]
    for result, expected in zip(together, alone, strict=True):
        np.testing.assert_allclose(result["scores"], expected, 1e-5, 1e-5)
    web = responds(service, "rank", context={"user": 8, "device": "web"}, candidate_ids=movies[1:])
    assert not np.allclose(web["scores"], alone[1])
