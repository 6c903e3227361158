"""Scores of candidates for contexts, against the reference model in float64; and the same scores
of candidates that idle threads divide.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.features.columns import Column
from tests.bundles.small import GENRE_NAMES
from tests.units.service.engine.served import Served, column

Load = Callable[..., Served]
HEADS = ("watch", "rating")


def random_ranking(ids: NDArray[Any], seed: int) -> dict[str, Any]:
    """Returns a request with contexts of any number of candidates, and any of the candidates'
    features sent.
    """
    random = np.random.default_rng(seed)
    m = int(random.integers(8, 90))
    n = int(random.integers(1, 6))
    ends = np.cumsum([0, *random.integers(0, 4, n)])
    context = {"user": Column(random.integers(0, 60, n)), "recent": Column(ids[: ends[-1]], ends)}
    ends = np.cumsum([0, *random.integers(0, 3, m)])
    names = np.array((*GENRE_NAMES, "opera"), object)[random.integers(0, 6, ends[-1])]
    candidates = {
        "year": Column(random.random(m, np.float32)),
        "movie": Column(ids[random.integers(0, 9, m)]),
        "genres": Column(names, ends),
    }
    return {
        "context": context,
        "candidate_ids": ids[random.integers(0, len(ids), m)],
        "candidate_features": {
            name: column for name, column in candidates.items() if random.random() < 0.5
        },
        "offsets": np.array([0, *np.sort(random.integers(0, m + 1, n - 1)), m]),
        "heads": HEADS if seed % 2 else (),
        "k": (0, 1, 40)[seed % 3],
    }


@pytest.mark.parametrize("parts", [False, True])
def test_rank_divided_has_the_same_bits(
    load: Load, monkeypatch: pytest.MonkeyPatch, parts: bool
) -> None:
    monkeypatch.setattr("service.engine.ranking.rank._RANGE_MIN", 4)
    whole = load(parts=parts)
    divided = load(threads=3, model="again", parts=parts)
    counters = divided.counted()

    for seed in range(25):
        for counter in counters.values():
            counter.examples.clear()
        request = random_ranking(whole.small.ids, seed)
        ranked = divided.rank(**request)
        expected = whole.rank(**request)
        m = len(request["candidate_ids"])
        assert len(counters["trunk" if parts else "whole"].examples) == min(4, m // 4)
        assert ranked.scores.tobytes() == expected.scores.tobytes()
        assert ranked.positions.tolist() == expected.positions.tolist()
        assert ranked.offsets.tolist() == expected.offsets.tolist()
        for head in request["heads"]:
            assert ranked.heads[head].tobytes() == expected.heads[head].tobytes()


def test_rank_divided_uses_all_threads_and_runs_context_parts_once(load: Load) -> None:
    service = load(threads=2, parts=True)
    counters = service.counted()
    counters["trunk"].barrier = threading.Barrier(3)
    service.rank(context={"user": column(1)}, candidate_ids=service.small.ids[np.arange(1536) % 40])
    assert counters["trunk"].examples == [512] * 3
    assert len(counters["trunk"].threads) == 3
    assert counters["context"].examples == [1]
