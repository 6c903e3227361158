from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from bundle.format.manifest import HeadEffect
from export.errors import VerificationFailed
from export.recipe.schema import ExportJob
from export.verify.rankings import (
    area_under_curve,
    check_effects,
    kendall_tau,
    measure_effect,
    order_effects,
    overlap,
)
from tests.units.export.ranking_parts import experts_recipe


def tau_by_pairs(first: list[float], second: list[float]) -> float:
    signs = [
        (np.sign(a - b), np.sign(c - d))
        for (a, c), (b, d) in combinations(zip(first, second, strict=True), 2)
    ]
    agreeing = sum(first_sign * second_sign for first_sign, second_sign in signs)
    return float(
        agreeing
        / np.sqrt(
            sum(first_sign != 0 for first_sign, _ in signs)
            * sum(second_sign != 0 for _, second_sign in signs)
        )
    )


def test_kendall_tau_with_ties_is_that_of_all_pairs() -> None:
    random = np.random.default_rng(2)
    first = random.integers(0, 12, 60).astype(float)
    second = np.round(first + random.normal(0, 4, 60))
    assert kendall_tau(first, second) == pytest.approx(
        tau_by_pairs(first.tolist(), second.tolist()), abs=1e-12
    )


def test_ranking_figures_of_edge_cases() -> None:
    values = np.arange(5.0)
    best = np.array([5, 4, 3, 2, 1.0])
    assert kendall_tau(np.zeros(5), values) == 1  # no order that could be lost
    assert kendall_tau(values, np.zeros(5)) == 0
    assert overlap(best, np.array([5, 1, 4, 3, 2.0]), 2) == 0.5
    assert overlap(best, np.ones(5), 2) == 1  # equals are taken for each other
    assert (
        area_under_curve(np.array([0.1, 0.4, 0.4, 0.8]), np.array([0, 1, 0, 1]))
        == (1 + 0.5 + 1 + 1) / 4
    )


def test_measure_effect_labels_of_one_kind_give_no_curve() -> None:
    values = np.arange(30.0)
    effect = measure_effect(values, values, np.ones(30))
    assert (effect.kendall_tau, effect.overlap, effect.k, effect.auc) == (1, 1, 3, None)
    effect = measure_effect(values, -values, (values > 9).astype(int))
    assert (effect.kendall_tau, effect.overlap, effect.auc, effect.auc_original) == (-1, 0, 0, 1)


def test_order_effects_are_those_of_outputs_of_one_number_that_both_have() -> None:
    random = np.random.default_rng(5)
    clicks = random.normal(size=(40, 1))
    buys = random.normal(size=40)
    original = {
        "click": clicks,
        "buy": buys,
        "vector": random.normal(size=(40, 2)),
        "left_out": buys,
    }
    results = {name: values for name, values in original.items() if name != "left_out"}
    labels = {"buy": (buys > 0).astype(int)}
    effects = order_effects(results | {"click": -clicks}, original, labels)
    assert {name: (effect.kendall_tau, effect.auc) for name, effect in effects.items()} == {
        "click": (-1, None),
        "buy": (1, 1),
    }


@pytest.mark.parametrize(
    ("examples", "k"), [(1, 1), (9, 1), (19, 1), (20, 2), (1000, 100), (1009, 100), (3000, 100)]
)
def test_measure_effect_compares_the_best_tenth_but_at_most_a_hundred(
    examples: int, k: int
) -> None:
    values = np.arange(float(examples))
    assert measure_effect(values, values).k == k


@pytest.mark.parametrize("k", [1, 2, 20, 199])
def test_overlap_is_that_of_the_best_in_order(k: int) -> None:
    random = np.random.default_rng(9)
    for _ in range(20):
        first, second = random.normal(size=(2, 200))
        best = [set(np.argsort(-values)[:k].tolist()) for values in (first, second)]
        assert overlap(first, second, k) == len(best[0] & best[1]) / k


def test_kendall_tau_of_many_examples_is_that_of_the_first_ten_thousand() -> None:
    first = np.arange(10_003.0)
    second = first.copy()
    second[10_000:] = -1
    assert kendall_tau(first, second) == pytest.approx(1, abs=1e-12)


def test_check_effects_below_the_limit_rejects_with_the_figures() -> None:
    page = experts_recipe().model_dump(mode="json", exclude_unset=True)

    def check(limit: float) -> None:
        effect = HeadEffect(kendall_tau=0.9, overlap=0.8, k=10, auc=0.70, auc_original=0.75)
        page["towers"]["ranking"]["overlap_min"] = {"int8": limit}
        job = ExportJob.model_validate(page)
        check_effects("tower 'ranking'", "ranking", "int8", {"click": effect}, job)
        check_effects("tower 'ranking'", "ranking", "bf16", {"click": effect}, job)
        check_effects("tower 'ranking'", "ranking", "f32", {"click": effect}, job)

    check(0.8)
    message = r"0\.8000 of the original's best 10 stay the best, .*overlap_min\.int8 = 0\.9"
    with pytest.raises(VerificationFailed, match=message):
        check(0.9)
