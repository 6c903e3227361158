"""Formula, minimum score, crowding and diversity, against loops over all candidates of
small corpora.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from service.engine.retrieval import reordering
from tests.units.service.engine.served import Served, column

Load = Callable[..., Served]


def diverse_by_loops(
    scores: list[float],
    vectors: NDArray[np.float64],
    diversity: float,
    chosen: list[int],
    free: list[int],
) -> dict[int, float]:
    """The gain of each candidate that may be picked next."""
    low = min(scores)
    high = max(scores)
    gains = {}
    for candidate in free:
        relevance = (scores[candidate] - low) / (high - low) if high > low else 0.0
        cosines = []
        for chosen_candidate in chosen:
            lengths = float(
                np.linalg.norm(vectors[candidate]) * np.linalg.norm(vectors[chosen_candidate])
            )
            cosines.append(
                float(vectors[candidate] @ vectors[chosen_candidate]) / lengths if lengths else 0.0
            )
        gains[candidate] = (1 - diversity) * relevance - diversity * max(cosines, default=0.0)
    return gains


Codes = list[tuple[int, int]]
"""The numbers of the values that candidates have of two attributes; -1: it has none."""
CODES = st.lists(st.tuples(st.integers(-1, 3), st.integers(-1, 2)), min_size=1, max_size=12)
MAXIMA = st.tuples(st.integers(1, 3), st.integers(1, 4))


def free_by_loops(
    codes: Codes, maxima: tuple[int, int], chosen: list[int], remaining: list[int]
) -> list[int]:
    """Those whose values are not there as often as they may be."""
    free = []
    for candidate in remaining:
        counts = [
            sum(
                codes[chosen_candidate][column] == codes[candidate][column]
                for chosen_candidate in chosen
            )
            for column in range(2)
        ]
        if all(
            codes[candidate][column] < 0 or counts[column] < maxima[column] for column in range(2)
        ):
            free.append(candidate)
    return free


@given(
    codes=CODES,
    maxima=MAXIMA,
    k=st.integers(1, 12),
    diversity=st.floats(0, 1),
    seed=st.integers(0, 1000),
)
@settings(max_examples=300)
def test_diverse_picks_the_largest_gain_among_those_that_crowding_leaves(
    codes: Codes, maxima: tuple[int, int], k: int, diversity: float, seed: int
) -> None:
    random = np.random.default_rng(seed)
    scores = np.sort(random.normal(size=len(codes)).round(1))[::-1].astype(np.float32)
    # Equal and zero vectors are among them.
    vectors = random.integers(-1, 2, (len(codes), 3)).astype(np.float32)
    picked = reordering.pick_diverse(scores, vectors, k, diversity, np.array(codes), maxima)
    for step, candidate in enumerate(picked):
        remaining = [number for number in range(len(codes)) if number not in picked[:step]]
        free = free_by_loops(codes, maxima, picked[:step], remaining)
        gains = diverse_by_loops(
            scores.tolist(), vectors.astype(float), diversity, picked[:step], free
        )
        assert gains[candidate] >= max(gains.values()) - 1e-5
    remaining = [number for number in range(len(codes)) if number not in picked]
    assert len(picked) == len(set(picked)) <= k
    assert len(picked) == k or not free_by_loops(codes, maxima, picked, remaining)


@given(codes=CODES, maxima=MAXIMA, k=st.integers(1, 12))
def test_uncrowded_leaves_the_first_of_each_value(
    codes: Codes, maxima: tuple[int, int], k: int
) -> None:
    picked_by_loops: list[int] = []
    for candidate in range(len(codes)):
        picked_by_loops += free_by_loops(codes, maxima, picked_by_loops, [candidate])
    assert reordering.pick_uncrowded(np.array(codes, np.int64), maxima, k) == picked_by_loops[:k]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"formula": "-score"},
        {"diversity": 0.5},
        {"crowding": {"studio": 4, "classic": 9}},
        {"crowding": {"studio": 4}, "diversity": 0.3, "min_score": 0.0},
    ],
)
@pytest.mark.parametrize("call", ["retrieve", "recommend"])
def test_pages_of_a_pool_make_up_its_list(load: Load, call: str, options: dict[str, Any]) -> None:
    if call == "recommend":
        options = {**options, "formula": "score + retrieval_score"}
    tree = {"num_leaves": 20, "leaves_to_search": 3, "dimensions_per_block": 2, "reorder": 20}
    service = load(size=400, index_kind="tree_ah", parameters=tree)
    result = getattr(service, call)

    def page(offset: int, k: int) -> Any:
        return result(
            context={"user": column(4)}, k=k, pool_size=60, offset=offset, explain=True, **options
        )

    whole = page(0, 60)
    page_ids = list[int]()
    for offset in range(0, 56, 7):
        part = page(offset, 7)
        page_ids += part.ids.tolist()
        (explanation,) = part.explanations
        ended = "the pool of 60 candidates has no more neighbors"
        assert explanation.shortfall == ("" if part.ids.size == 7 else ended)
    assert len(set(page_ids)) == len(page_ids) > 14
    assert page_ids == whole.ids[:56].tolist()
