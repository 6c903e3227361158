"""The distribution of scores at export: bins of about a tenth, whose ends no score is near."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.format.manifest import ScoreDistribution, Tower, TowerOutput
from export.recipe.schema import VerifySection
from export.verify.score_distributions import score_distribution, with_score_distributions


def shares_of(distribution: ScoreDistribution, scores: NDArray[Any]) -> list[float]:
    """Returns the share of the scores in each bin, counted one after the other."""
    counts = [0] * len(distribution.shares)
    for score in scores.tolist():
        counts[sum(edge <= score for edge in distribution.edges)] += 1
    return [count / scores.size for count in counts]


def test_distinct_scores_have_ten_bins_of_about_a_tenth() -> None:
    scores = np.random.default_rng(2).normal(size=256).astype(np.float32)
    distribution = score_distribution(scores)
    assert distribution is not None
    assert distribution.examples == 256
    assert len(distribution.shares) == 10
    assert distribution.shares == pytest.approx(shares_of(distribution, scores))
    assert max(distribution.shares) - min(distribution.shares) <= 1 / 256


@pytest.mark.parametrize("share", [0.1, 0.3, 0.75, 0.88])
def test_equal_scores_share_a_bin_whose_ends_they_are_not_near(share: float) -> None:
    count = round(200 * share)
    other_scores = np.random.default_rng(2).uniform(-1, 1, 200 - count)
    scores = np.r_[np.zeros(count), other_scores].astype(np.float32)
    distribution = score_distribution(scores)
    assert distribution is not None
    assert distribution.shares == pytest.approx(shares_of(distribution, scores))
    assert min(distribution.shares) >= 0.05
    noise = np.float32(1e-6)
    moved = shares_of(distribution, np.r_[scores + noise, scores - noise])
    assert moved == pytest.approx(distribution.shares)


@pytest.mark.parametrize(
    "scores",
    [
        np.random.default_rng(2).normal(size=99),
        np.ones(500),
        np.r_[np.ones(495), np.zeros(5)],
    ],
    ids=["few", "equal", "nearly equal"],
)
def test_scores_that_tell_nothing_have_no_distribution(scores: NDArray[Any]) -> None:
    assert score_distribution(scores) is None


def tower(role: Any = "ranking", formula: str | None = None) -> Tower:
    outputs = tuple(
        TowerOutput(name=name, dtype="float32", shape=(None, 1)) for name in ("click", "like")
    )
    return Tower(role=role, inputs=(), outputs=outputs, result="click", forms=(), formula=formula)


def test_distribution_is_that_of_what_candidates_are_ordered_by() -> None:
    random = np.random.default_rng(4)
    outputs = {name: random.uniform(0.1, 1, (120, 1)) for name in ("click", "like")}
    towers = {
        "plain": tower(),
        "combined": tower(formula="click * like"),
        "undefined": tower(formula="log(click - 0.5)"),
        "candidate": tower("candidate"),
    }
    expected = dict.fromkeys(towers, outputs)
    described = with_score_distributions(towers, expected, VerifySection(examples="real.jsonl"))
    click = outputs["click"].reshape(-1)
    product = click * outputs["like"].reshape(-1)
    assert described["plain"].scores == score_distribution(click)
    assert described["combined"].scores == score_distribution(product)
    assert described["combined"].scores != described["plain"].scores
    assert described["undefined"].scores is None
    assert described["candidate"].scores is None
    assert with_score_distributions(towers, expected, VerifySection()) == towers
