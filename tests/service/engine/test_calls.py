"""What requests cost, and which of them take about equally long."""

from __future__ import annotations

import numpy as np

from service.engine.calls import Condition, Filter, IdLists, Retrieval, Target
from tests.service.running import column


def retrieval(**options: object) -> Retrieval:
    return Retrieval(target=Target("m"), context={"user": column(7)}, **options)  # type: ignore[arg-type]


def test_kind_and_cost_of_a_retrieval_see_its_filter_exclusions_and_recall() -> None:
    plain = retrieval()
    many = np.arange(100_000)
    filtered = retrieval(filter=Filter({"genre": Condition(allow=many)}))
    shorter = retrieval(filter=Filter({"genre": Condition(allow=many[:1])}))
    excluding = retrieval(exclude_ids=IdLists(many, np.array([0, many.size])))
    kinds = {each.kind for each in (plain, filtered, shorter, excluding, retrieval(recall=0.9))}
    assert len(kinds) == 5
    assert retrieval(recall=0.5).kind != retrieval(recall=1.0).kind
    assert plain.cost == shorter.cost == 1
    assert filtered.cost > 300
    assert excluding.cost > 300
