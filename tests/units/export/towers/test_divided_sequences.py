"""Rankers of a candidate behind a history: the history is computed once for all candidates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from export.graphs.loading import load_tensorflow, tf
from export.towers.division import Split, split_tower
from tests.units.export.partition.graph.traced_calls import numbers, tower_of, trace
from tests.units.export.ranking_parts import run, run_parts
from tests.units.export.towers.sequence_rankers import HISTORY, STYLES, WIDTH, Style, ranker

load_tensorflow()
ROLES: dict[str, Any] = {"history": "context", "user": "context", "item": "candidate"}
CONTEXTS = 3
CANDIDATES = 4
N = CONTEXTS * CANDIDATES


def examples(seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Candidates of contexts, whose histories begin with padding."""
    random = np.random.default_rng(seed)
    history = random.standard_normal((CONTEXTS, HISTORY, WIDTH)).astype(np.float32)
    for context, padding in enumerate((0, 5, HISTORY - 1)):
        history[context, :padding] = 0
    user = random.standard_normal((CONTEXTS, WIDTH)).astype(np.float32)
    return {
        "history": history.repeat(CANDIDATES, axis=0),
        "user": user.repeat(CANDIDATES, axis=0),
        "item": random.standard_normal((N, WIDTH)).astype(np.float32),
    }


def divided(style: Style) -> tuple[Any, Split]:
    shapes = {"history": (HISTORY, WIDTH), "user": (WIDTH,), "item": (WIDTH,)}
    if style.order != "user":
        del shapes["user"]
    tower = tower_of(
        trace(ranker(style), **{name: numbers(*shape) for name, shape in shapes.items()})
    )
    return tower, split_tower(tower, ROLES)


def costs(split: Split, per: str) -> int:
    return sum(part.cost for part in split.parts if part.spec.per == per)


# Each mask in each order by day, and each with each result by night.
@pytest.mark.parametrize(
    "style",
    [
        style if number % 5 == 0 else pytest.param(style, marks=pytest.mark.nightly)
        for number, style in enumerate(STYLES)
    ],
    ids=str,
)
def test_history_is_computed_once_for_all_candidates(style: Style) -> None:
    tower, split = divided(style)
    reads_padding = style.mask in ("padded", "numbers") and style.result in ("mean", "flat")
    # Behind a user's position, padding sees the user.
    if reads_padding and style.order != "user":
        # Padding before the first event sees the candidate, and the result sees padding.
        (note,) = split.notes
        assert "positions that see nothing but the candidate" in note
        return
    values = examples()
    expected = run(tower, values, N)["score"]
    actual = run_parts(split.parts, values, N, CANDIDATES)["score"]
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=2e-6)
    assert costs(split, "context") > 4 * costs(split, "candidate")
    *_, last = split.parts
    assert last.spec.is_of_one_context
    assert not split.notes


def test_scores_depend_on_no_other_candidate_of_the_context() -> None:
    _, split = divided(Style("padded"))
    values = examples()
    together = run_parts(split.parts, values, N, CANDIDATES)["score"]
    others = examples(seed=1)["item"]
    others[::CANDIDATES] = values["item"][::CANDIDATES]
    beside_others = run_parts(split.parts, values | {"item": others}, N, CANDIDATES)["score"]
    np.testing.assert_array_equal(beside_others[::CANDIDATES], together[::CANDIDATES])


def sorted_together(inputs: Any) -> dict[str, Any]:
    x = tf.concat(
        [inputs["history"] @ tf.ones([WIDTH, 64]), inputs["item"][:, None] @ tf.ones([WIDTH, 64])],
        1,
    )
    return {"score": tf.reduce_sum(tf.sort(x, axis=1)[:, :3], [1, 2])}


@pytest.mark.parametrize(
    "call", [ranker(Style("none")), ranker(Style("none", layers=1)), sorted_together]
)
def test_what_sees_the_candidate_is_computed_with_it(call: Any) -> None:
    shapes = {"history": (HISTORY, WIDTH), "item": (WIDTH,)}
    tower = tower_of(trace(call, **{name: numbers(*shape) for name, shape in shapes.items()}))
    split = split_tower(tower, ROLES)
    values = examples()
    expected = run(tower, values, N)["score"]
    actual = run_parts(split.parts, values, N, CANDIDATES)["score"]
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=2e-6)
    if call is sorted_together:
        (note,) = split.notes
        assert "TopKV2" in note
