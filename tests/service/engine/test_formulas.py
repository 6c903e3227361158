"""What candidates are ordered by: the bundle's formula, the request's, or the tower's result."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bundle.manifest import dump
from bundle.paths import MANIFEST
from service.engine.requests import Ranked, Ranking, Recommendation, Target
from service.errors import InvalidArgument
from tests.service.engine.test_parts import counted, ran
from tests.service.running import CALL, Running, column
from tests.service.small_bundle import SmallBundle

Write = Callable[..., SmallBundle]
Run = Callable[..., Running]
FORMULA = "watch^0.5 * exp(-0.1 * rating)"


def rank(service: Running, **request: Any) -> Ranked:
    asked = {"context": {"user": column(3)}, "heads": ("score", "watch", "rating"), **request}
    return service.ask(service.engine.rank(Ranking(Target(), **asked), CALL))


def by_formula(heads: Any) -> Any:
    return np.sqrt(heads["watch"].astype(float)) * np.exp(-0.1 * heads["rating"].astype(float))


def test_formula_of_the_bundle_gives_scores_and_order(write: Write, run: Run) -> None:
    small = write(formula=FORMULA)
    service = run()
    answer = rank(service, candidate_ids=small.ids)
    np.testing.assert_allclose(answer.scores, by_formula(answer.heads), 1e-6)
    best = rank(service, candidate_ids=small.ids, k=5)
    assert best.positions.tolist() == np.argsort(-answer.scores, kind="stable")[:5].tolist()
    assert best.scores.tolist() == np.sort(answer.scores)[::-1][:5].tolist()


def test_formula_of_a_request_wins_over_the_bundles(write: Write, run: Run) -> None:
    small = write(formula=FORMULA)
    service = run()
    answer = rank(service, candidate_ids=small.ids, formula="rating")
    assert answer.scores.tolist() == answer.heads["rating"].tolist()
    plain = rank(service, candidate_ids=small.ids, formula="-score + 2 * min(watch, 0.5)")
    expected = -plain.heads["score"].astype(float) + 2 * np.minimum(plain.heads["watch"], 0.5)
    np.testing.assert_allclose(plain.scores, expected, 1e-6)


def test_recommend_is_ordered_by_the_formula(write: Write, run: Run) -> None:
    small = write()
    service = run()
    heads = rank(service, candidate_ids=small.ids).heads
    asked = {"features": {"user": column(3)}, "k": 40, "candidates": 40, "formula": FORMULA}
    answer = service.ask(service.engine.recommend(Recommendation(Target(), **asked), CALL))  # type: ignore[arg-type]
    assert answer.neighbors.ids.tolist() == small.ids[np.argsort(-by_formula(heads), kind="stable")].tolist()
    np.testing.assert_allclose(answer.neighbors.scores, np.sort(by_formula(heads))[::-1], 1e-6)


def test_formula_runs_only_the_parts_of_its_outputs(write: Write, run: Run) -> None:
    small = write(parts=True)
    service = run()
    counters = counted(service)
    rank(service, candidate_ids=small.ids[:4], formula="watch * 2", heads=())
    assert ran(counters) == {"context": [1], "trunk": [4], "watch": [4]}


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("watch *", "formula 'watch \\*': it ends where"),
        ("wach * 2", "output 'wach' is not taken by the formula of tower 'ranking'; did you mean 'watch'"),
        ("watch; score", "position 6 is ';'"),
        ("2 + 3", "names no output"),
        ("log(score - 1000)", "no finite value for candidate 0, where score = .*its id is '1014'"),
        ("1 / (score - score)", "no finite value for candidate 0"),
        ("+" * 2000 + "score", "2005 characters"),
    ],
)
def test_formula_that_does_not_do_is_refused_with_its_place(write: Write, run: Run, formula: str, message: str) -> None:
    small = write()
    service = run()
    with pytest.raises(InvalidArgument, match=message):
        rank(service, candidate_ids=small.ids[2:4], formula=formula)
    asked = Recommendation(Target(), {"user": column(3)}, formula=formula)
    with pytest.raises(InvalidArgument):
        service.ask(service.engine.recommend(asked, CALL))


def test_formula_of_no_candidates_gives_none(write: Write, run: Run) -> None:
    write(formula=FORMULA)
    assert rank(run(), candidate_ids=np.empty(0, np.int64)).scores.size == 0


@pytest.mark.parametrize(
    ("formula", "message"), [("watch ^ ", "'watch ^ ': it ends where"), ("watch * like", "'like'.* no output")]
)
def test_bundle_with_a_bad_formula_is_refused(write: Write, run: Run, formula: str, message: str) -> None:
    small = write()
    tower = small.manifest.towers["ranking"].model_copy(update={"formula": formula})
    page = small.manifest.model_copy(update={"towers": {**small.manifest.towers, "ranking": tower}})
    (small.directory / MANIFEST).write_bytes(dump(page))
    service = run()
    assert service.states() == {1: "refused"}
    assert re.search(re.escape(message).replace(r"\.\*", ".*"), service.problem(1))
