"""What candidates are ordered by: the bundle's formula, the request's, or the tower's result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.units.service.engine.served import Served, column, examples

Load = Callable[..., Served]
FORMULA = "watch^0.5 * exp(-0.1 * rating)"


def rank(service: Served, **request: Any) -> Any:
    request_ = {"context": {"user": column(3)}, "heads": ("score", "watch", "rating"), **request}
    return service.rank(**request_)


def by_formula(heads: Any) -> Any:
    return np.sqrt(heads["watch"].astype(float)) * np.exp(-0.1 * heads["rating"].astype(float))


def test_formula_of_the_bundle_gives_scores_and_order_unless_one_is_sent(load: Load) -> None:
    service = load(formula=FORMULA)
    result = rank(service, candidate_ids=service.small.ids)
    np.testing.assert_allclose(result.scores, by_formula(result.heads), 1e-6)
    best = rank(service, candidate_ids=service.small.ids, k=5)
    assert best.positions.tolist() == np.argsort(-result.scores, kind="stable")[:5].tolist()
    assert best.scores.tolist() == np.sort(result.scores)[::-1][:5].tolist()
    by_rating = rank(service, candidate_ids=service.small.ids, formula="rating")
    assert by_rating.scores.tolist() == by_rating.heads["rating"].tolist(), (
        "a request's formula wins"
    )


def test_formula_runs_only_the_parts_of_its_outputs(load: Load) -> None:
    service = load(parts=True)
    counters = service.counted()
    rank(service, candidate_ids=service.small.ids[:4], formula="watch * 2", heads=())
    assert examples(counters) == {"context": [1], "trunk": [4], "watch": [4]}
