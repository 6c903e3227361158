"""The order of a ranking by the formula of the bundle, and the scores of rankings that idle threads
divide.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.features.columns import Column
from service.engine.calls import RankingRequest, Target
from tests.bundles.small import GENRE_NAMES, SmallBundle
from tests.units.service.changes.making import responds
from tests.units.service.engine.served import CountingTower
from tests.units.service.running import RunningService

Serve = Callable[..., RunningService]
Write = Callable[..., SmallBundle]
HEADS = ("watch", "rating")


def test_formula_of_the_bundle_gives_scores_and_order_unless_one_is_sent(
    write: Write, serve: Serve
) -> None:
    small = write(formula="watch^0.5 * exp(-0.1 * rating)")
    service = serve()
    body = {"context": {"user": 3}, "candidate_ids": small.ids.tolist(), "heads": [*HEADS]}
    ranked = responds(service, "rank", **body)
    watch, rating = (np.array(ranked["heads"][head]) for head in HEADS)
    np.testing.assert_allclose(ranked["scores"], np.sqrt(watch) * np.exp(-0.1 * rating), 1e-6)
    best = responds(service, "rank", k=5, **body)
    order = np.argsort(-np.array(ranked["scores"]), kind="stable")[:5]
    assert best["ids"] == small.ids[order].tolist()
    own = responds(service, "rank", formula="rating", **body)
    assert own["scores"] == own["heads"]["rating"]


def random_ranking(ids: NDArray[Any], seed: int) -> RankingRequest:
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
    return RankingRequest(
        Target(),
        context=context,
        candidate_ids=ids[random.integers(0, len(ids), m)],
        candidate_features={
            name: column for name, column in candidates.items() if random.random() < 0.5
        },
        offsets=np.array([0, *np.sort(random.integers(0, m + 1, n - 1)), m]),
        heads=HEADS if seed % 2 else (),
        k=(0, 1, 40)[seed % 3],
    )


@pytest.mark.parametrize("parts", [False, True])
def test_rank_divided_among_threads_and_blocks_has_the_same_bits(
    parts: bool, write: Write, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = write(parts=parts)
    service = serve(threads=3, inline_max_us=0)
    part = 1 if parts else 0
    counter = CountingTower(service.current().towers["ranking"].parts[part].network)
    service.with_network("ranking", counter, part=part)
    requests = [random_ranking(small.ids, seed) for seed in range(25)]
    whole = [service.execute(request) for request in requests]
    runs = len(counter.examples)
    monkeypatch.setattr("service.engine.ranking.rank._RANGE_MIN", 4)
    monkeypatch.setattr("service.engine.towers._ROWS_MAX", 7)
    for request, expected in zip(requests, whole, strict=True):
        divided = service.execute(request)
        assert divided.scores.tobytes() == expected.scores.tobytes()
        assert divided.positions.tolist() == expected.positions.tolist()
        assert divided.offsets.tolist() == expected.offsets.tolist()
        for head in request.heads:
            assert divided.heads[head].tobytes() == expected.heads[head].tobytes()
    assert len(counter.examples) > 3 * runs
    assert len(counter.threads) > 1
