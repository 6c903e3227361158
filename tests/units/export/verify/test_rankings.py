"""What is measured of an order of scores: rank correlations, the best that stay the best, labels,
and the distribution of scores at export.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from bundle.format.manifest import HeadEffect, Tower, TowerOutput
from export.errors import VerificationFailed
from export.recipe.schema import ExportJob, VerifySection
from export.verify.rankings import check_effects, order_effects
from export.verify.score_distributions import with_score_distributions
from tests.units.export.ranking_parts import experts_recipe

Scores = NDArray[np.float64]
scores = arrays.arrays(
    np.float64, st.integers(2, 60), elements=st.integers(-5, 5).map(lambda value: value / 4)
)


def effect(first: Scores, second: Scores, labels: Any = None) -> HeadEffect:
    """Returns what is lost where the second scores take the place of the first."""
    named = {} if labels is None else {"head": labels}
    return order_effects({"head": second}, {"head": first}, named)["head"]


@given(scores, st.data())
def test_rank_correlation_and_curve_are_those_of_all_pairs(
    first: Scores, data: st.DataObject
) -> None:
    size = first.size
    second = data.draw(arrays.arrays(np.float64, size, elements=st.integers(-3, 3)))
    labels = data.draw(arrays.arrays(np.int64, size, elements=st.integers(0, 1)))
    measured = effect(first, second, labels)
    pairs = np.triu_indices(size, 1)
    one = np.sign(first[pairs[0]] - first[pairs[1]])
    other = np.sign(second[pairs[0]] - second[pairs[1]])
    if one.any() and other.any():
        tau = (one * other).sum() / np.sqrt(one.astype(bool).sum() * other.astype(bool).sum())
    else:
        tau = 1.0 if not one.any() else 0.0  # where there was no order, none is lost
    assert measured.kendall_tau == pytest.approx(tau, abs=1e-9)
    curves = []
    for values in (second, first):
        above = values[labels == 1][:, np.newaxis] - values[labels == 0][np.newaxis]
        curves.append(np.mean((above > 0) + (above == 0) / 2) if above.size else None)
    assert [measured.auc, measured.auc_original] == [
        None if curve is None else pytest.approx(curve) for curve in curves
    ]


@settings(max_examples=settings().max_examples // 4)
@given(st.integers(1, 3000), st.integers(0, 99))
def test_overlap_is_that_of_the_best_tenth_but_at_most_a_hundred(size: int, seed: int) -> None:
    first, second = np.random.default_rng(seed).normal(size=(2, size))
    measured = effect(first, second)
    k = max(1, min(100, size // 10))
    best = [set(np.argsort(-values)[:k].tolist()) for values in (first, second)]
    assert (measured.k, measured.overlap) == (k, len(best[0] & best[1]) / k)
    assert effect(first, np.ones(size)).overlap == 1  # equals are taken for each other


def test_effect_below_the_limit_of_the_recipe_is_rejected_with_it() -> None:
    page = experts_recipe().model_dump(mode="json", exclude_unset=True)
    measured = HeadEffect(kendall_tau=0.9, overlap=0.8, k=10, auc=0.70, auc_original=0.75)
    for limit in (0.8, 0.9):
        page["towers"]["ranking"]["overlap_min"] = {"int8": limit}
        job = ExportJob.model_validate(page)
        for precision in ("bf16", "f32"):
            check_effects("here", "ranking", precision, {"click": measured}, job)
        if limit == 0.8:
            check_effects("here", "ranking", "int8", {"click": measured}, job)
        else:
            with pytest.raises(VerificationFailed, match=r"0\.8000 .*overlap_min\.int8 = 0\.9"):
                check_effects("here", "ranking", "int8", {"click": measured}, job)


def distribution(values: NDArray[Any], formula: str | None = None, role: Any = "ranking") -> Any:
    """Returns what a manifest says of the scores of a tower with two outputs."""
    outputs = tuple(
        TowerOutput(name=name, dtype="float32", shape=(None, 1)) for name in ("click", "like")
    )
    tower = Tower(role=role, inputs=(), outputs=outputs, result="click", forms=(), formula=formula)
    results = {"tower": {"click": values, "like": values}}
    section = VerifySection(examples="real.jsonl")
    described = with_score_distributions({"tower": tower}, results, section)
    assert with_score_distributions({"tower": tower}, results, VerifySection())["tower"] == tower
    return described["tower"].scores


def shares_of(edges: Any, values: NDArray[Any]) -> list[float]:
    """Returns the share of the scores in each bin, counted one after the other."""
    counts = [0] * (len(edges) + 1)
    for score in values.tolist():
        counts[sum(edge <= score for edge in edges)] += 1
    return [count / values.size for count in counts]


@pytest.mark.parametrize("share", [0, 0.1, 0.3, 0.75, 0.88])
def test_scores_have_up_to_ten_bins_whose_ends_no_score_is_near(share: float) -> None:
    count = round(256 * share)
    others = np.random.default_rng(2).uniform(-1, 1, 256 - count)
    values = np.r_[np.zeros(count), others].astype(np.float32)
    described = distribution(values)
    assert described.examples == 256
    assert described.shares == pytest.approx(shares_of(described.edges, values))
    assert min(described.shares) >= 0.05
    if share == 0:
        assert max(described.shares) - min(described.shares) <= 1 / 256
    noise = np.float32(1e-6)
    moved = shares_of(described.edges, np.r_[values + noise, values - noise])
    assert moved == pytest.approx(described.shares)


def test_distribution_is_that_of_what_candidates_are_ordered_by() -> None:
    values = np.random.default_rng(4).uniform(0.1, 1, (120, 1))
    assert distribution(values, "click * like") == distribution(values**2)
    assert distribution(values, "log(click - 0.5)") is None  # of some it is not defined
    assert distribution(values, role="candidate") is None


@pytest.mark.parametrize(
    "values",
    [
        np.random.default_rng(2).normal(size=99),
        np.ones(500),
        np.r_[np.ones(495), np.zeros(5)],
    ],
    ids=["few", "equal", "nearly equal"],
)
def test_scores_that_tell_nothing_have_no_distribution(values: NDArray[Any]) -> None:
    assert distribution(values) is None
