"""The order of a ranking by the formula of the bundle, and the scores of rankings that idle threads
divide.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

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


def rankings(ids: list[int], number: int) -> dict[str, Any]:
    """Returns a body of contexts with any number of candidates, some of whose features are sent."""
    requests = []
    for user in range(number % 5, number % 5 + 1 + number % 4):
        candidates = ids[user : 2 + user * number % 30]
        context = {"user": user, "recent": ids[: user % 4]}
        request: dict[str, Any] = {"context": context, "candidate_ids": candidates}
        if number % 2:
            genres = [[*GENRE_NAMES, "opera"][: movie % 3] for movie in candidates]
            request["candidate_features"] = {"genres": genres, "movie": candidates[::-1]}
        requests.append(request)
    options = {"heads": [*HEADS]} if number % 3 else {}
    return {"requests": requests, "k": (0, 1, 40)[number % 3], **options}


@pytest.mark.parametrize("parts", [False, True])
def test_rank_divided_among_threads_and_blocks_has_the_same_bits(
    parts: bool, write: Write, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = write(parts=parts).ids.tolist()
    service = serve(threads=3, inline_max_us=0)
    part = 1 if parts else 0
    counter = CountingTower(service.current().towers["ranking"].parts[part].network)
    service.with_network("ranking", counter, part=part)
    bodies = [rankings(ids, number) for number in range(25)]
    whole = [responds(service, "rank", **body) for body in bodies]
    runs = len(counter.examples)
    monkeypatch.setattr("service.engine.ranking.rank._RANGE_MIN", 4)
    monkeypatch.setattr("service.engine.towers._ROWS_MAX", 7)
    assert [responds(service, "rank", **body) for body in bodies] == whole
    assert len(counter.examples) > 2 * runs
    assert len(counter.threads) > 1
