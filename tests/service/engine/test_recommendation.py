"""Retrieve, then rank, against the reference model, which does both in loops."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from service.engine.requests import Exclusion
from service.errors import NotFound
from tests.service import reference
from tests.service.engine.served import Served, column

Load = Callable[..., Served]


def test_recommend_by_default_ranks_ten_times_k_at_least_a_hundred(load: Load) -> None:
    service = load(size=300)
    answer = service.recommend(features={"user": column(2)}, k=5)
    (expected,) = reference.answers(service.small, "recommend", {"features": {"user": 2}, "k": 5})
    assert answer.neighbors.ids.tolist() == [each["id"] for each in expected["neighbors"]]
    service.recommend(features={"user": column(2)}, k=20)
    assert service.value("rowcast_candidates_total", call="recommend") == 100 + 200


def test_recommend_of_everything_excluded_is_empty(load: Load) -> None:
    service = load()
    answer = service.recommend(features={"user": column(2)}, exclude=Exclusion(service.small.ids))
    assert answer.neighbors.offsets.tolist() == [0, 0]


@pytest.mark.parametrize(("without", "message"), [("ranking", "no ranking tower"), ("indexes", "has no index")])
def test_recommend_of_a_bundle_without_what_it_needs_is_not_found(load: Load, without: str, message: str) -> None:
    with pytest.raises(NotFound, match=message):
        load(without=frozenset({without})).recommend(features={"user": column(1)})
