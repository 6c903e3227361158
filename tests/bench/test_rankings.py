"""The bench of rankings at 1/500 of its size, so that it never rots; and R's scores, the same bits in any company."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bundle.columns import Column
from service.engine import joined_rankings
from service.engine.ranking import rank
from service.engine.requests import Ranking, Target
from service.engine.steps import Steps
from service.settings import ServiceSettings
from service.wire.messages import read_ranking
from tests.bench.rankings import BARE, CANDIDATES, FORMS, MODELS, PRECISIONS, STEPS, TOGETHER, load, measure
from tests.bench.requests import rank_messages
from tests.bench.workloads import RankingWorkload


def test_bench_of_rankings_measures_every_way(tmp_path: Path, ranking: RankingWorkload) -> None:
    steps, joined = measure(tmp_path, ranking, 1)
    assert set(steps) == {(model, precision) for model in MODELS for precision in PRECISIONS}
    assert set(joined) == {(precision, m) for precision in PRECISIONS for m in CANDIDATES}
    assert all(set(taken) == {BARE, *FORMS} for taken in steps.values())
    assert all(0 < taken[form][step] < 60e6 for taken in steps.values() for form in FORMS for step in STEPS)
    assert all(0 < us[count] < 60e6 for us in joined.values() for count in TOGETHER)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_workload_ranking_scores_have_the_same_bits_in_any_company(ranking: RankingWorkload, precision: str) -> None:
    generation = load(ranking.directory.parents[1], ranking.model, precision)
    settings = ServiceSettings(root=ranking.directory.parents[1])
    asked = [read_ranking(body, Target(ranking.model)) for body in rank_messages(ranking)[:8]]

    def scores(request: Ranking) -> bytes:
        return rank(generation, request, settings, Steps("rank", math.inf, None)).scores.tobytes()

    def taken(request: Ranking, places: slice) -> Ranking:
        columns = request.candidates.items()
        return replace(request, candidates={name: Column(column.values[places].copy()) for name, column in columns})

    alone = [np.frombuffer(scores(request), np.float32) for request in asked]
    assert len({found.tobytes() for found in alone}) == len(asked)
    for request, found in zip(asked, alone, strict=True):
        for places in (slice(1), slice(3, 10), slice(0, 200, 3), slice(150, 200), slice(None, None, -1)):
            assert scores(taken(request, places)) == found[places].tobytes()
    assert scores(joined_rankings.join(asked)) == np.concatenate(alone).tobytes()  # 1 600 candidates: in blocks
    some = [taken(request, slice(place + 1)) for place, request in enumerate(asked)]
    cut = [found[: place + 1] for place, found in enumerate(alone)]
    assert scores(joined_rankings.join(some)) == np.concatenate(cut).tobytes()
    generation.close()
