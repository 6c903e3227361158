"""Recommendations whose sources list candidates that were changed while they are served."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.features.columns import Column
from service.codec.json import read_recommendation
from service.config import ServiceSettings
from service.engine.calls import RankingRequest, RecommendationRequest, RetrievalResult
from tests.bundles.small import LISTS, SmallBundle
from tests.units.service.changes.making import TARGET, absorb, candidate, change, deletion
from tests.units.service.running import RunningService

SETTINGS = ServiceSettings(root=Path())
KEPT = 1000
REPLACED = 1007
DELETED = 1014
DENIED = 1021
ADDED = 5000


def recommended(service: RunningService, **body: Any) -> list[int]:
    """The ids recommended from a list, in ascending order."""
    listed = {"ids": [KEPT, REPLACED, DELETED, DENIED, ADDED, 7]}
    whole = {"sources": [listed, {"index": "movies", "pool_size": 1, "max_count": 1}], **body}
    whole["context"] = {"user": 1}
    request = read_recommendation(whole, TARGET, SETTINGS)
    result: RetrievalResult = service.execute(request, "recommend")
    assert result.sources is not None
    return sorted(result.ids[result.sources == 0].tolist())


def test_candidates_of_a_list_are_those_of_the_present_state(
    write: Callable[..., SmallBundle], serve: Callable[..., RunningService]
) -> None:
    small = write(lists=True)
    service = serve()

    def listed() -> set[int]:
        body = {"sources": [{"list": "new"}], "context": {"user": 1}}
        result: RetrievalResult = service.execute(
            read_recommendation(body, TARGET, SETTINGS), "recommend"
        )
        return set(result.ids.tolist())

    new = {int(small.ids[position]) for position in LISTS["new"][""]}
    assert listed() == new
    replaced, deleted, denied = sorted(new)
    change(service, "candidates/upsert", candidate(replaced))
    change(service, "candidates/delete", *deletion([deleted]))
    with service.worker.versions.acquire("movies") as version:
        version.deny((str(denied),))
    assert listed() == {replaced}
    change(service, "candidates/upsert", candidate(deleted))
    assert listed() == {replaced, deleted}


def test_stage_scores_candidates_that_were_added_and_replaced(
    write: Callable[..., SmallBundle], serve: Callable[..., RunningService]
) -> None:
    small = write(keep=3)
    service = serve()
    change(service, "candidates/upsert", candidate(ADDED), candidate(REPLACED, 1028))
    ids = np.array([*small.ids, ADDED])
    context = {"user": Column(np.array([1]))}

    def best(tower: str, candidates: Any, k: int) -> Any:
        ranking = RankingRequest(TARGET, context, candidate_ids=candidates, k=k, tower=tower)
        return service.execute(ranking, "rank").ids

    for keep in range(3, 42):
        request = RecommendationRequest(TARGET, context=context, k=3, keep=keep, pool_size=41)
        result: RetrievalResult = service.execute(request, "recommend")
        assert [*result.ids] == [*best("ranking", best("quick", ids, keep), 3)]


@pytest.mark.parametrize("absorbed", [False, True])
def test_listed_candidates_are_those_of_the_present_state(
    absorbed: bool, write: Callable[..., SmallBundle], serve: Callable[..., RunningService]
) -> None:
    write()
    service = serve()
    assert recommended(service) == [KEPT, REPLACED, DELETED, DENIED]
    new = {"attributes": {"title": "New", "year": 2060}}
    change(service, "candidates/upsert", candidate(ADDED, **new), candidate(REPLACED, **new))
    if absorbed:
        absorb(service)
    change(service, "candidates/delete", *deletion([DELETED]))
    with service.worker.versions.acquire("movies") as version:
        version.deny((str(DENIED),))
    assert recommended(service) == [KEPT, REPLACED, ADDED]
    assert recommended(service, exclude_ids=[ADDED]) == [KEPT, REPLACED]
    assert recommended(service, filter={"year": {"ge": 2050}}) == [REPLACED, ADDED]
    assert recommended(service, filter={"none": [{"year": {"ge": 2050}}]}) == [KEPT]
