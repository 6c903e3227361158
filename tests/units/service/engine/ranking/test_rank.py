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
from service.engine.calls import RankingRequest, Target
from service.engine.computation import completed
from service.engine.execution import Execution
from service.engine.ranking.rank import rank
from service.errors import InvalidArgument, TooLarge
from tests.bundles.small import GENRE_NAMES
from tests.units.service import reference
from tests.units.service.engine.served import Served, column

Load = Callable[..., Served]
HEADS = ("watch", "rating")


@pytest.mark.parametrize("id_kind", ["int64", "string"])
def test_rank_of_several_contexts_scores_each_candidate_with_its_own(
    load: Load, id_kind: str
) -> None:
    service = load(id_kind=id_kind)
    movies = service.small.ids[[0, 7, 1]]
    offsets = [0, 2, 2, 3]
    result = service.rank(
        context={"user": column(3, 8, 999)}, candidate_ids=movies, offsets=np.array(offsets)
    )
    pairs = zip(movies.tolist(), (3, 3, 999), strict=True)
    expected = [reference.ranked(service.small, movie, user)["score"] for movie, user in pairs]
    np.testing.assert_allclose(result.scores, expected, 1e-5, 1e-5)
    assert (result.ids.tolist(), result.positions.tolist()) == (movies.tolist(), [0, 1, 0])
    assert result.offsets.tolist() == offsets
    assert service.value("rowcast_oov_ids_total", model="movies", feature="user") == 1


def test_rank_with_every_feature_sent_takes_ids_as_labels(load: Load) -> None:
    service = load()
    candidates = {
        "movie": column(int(service.small.ids[0])),
        "genres": column(offsets=[0, 0]),
        "year": column(0.5),
    }
    labels = np.array(["a label"], object)
    result = service.rank(
        context={"user": column(1)}, candidate_features=candidates, candidate_ids=labels
    )
    assert result.ids.tolist() == ["a label"]


@pytest.mark.parametrize(
    ("count", "phases"), [(0, {"lookup"}), (1, {"lookup", "compute"}), (40, {"lookup", "compute"})]
)
def test_rank_spends_its_time_in_lookups_and_the_tower(
    load: Load, count: int, phases: set[str]
) -> None:
    service = load()
    execution = Execution("rank")
    request = RankingRequest(
        Target(), context={"user": column(1)}, candidate_ids=service.small.ids[:count]
    )
    completed(rank(service.version, request, service.settings, execution))
    execution.end()
    assert set(execution.phases) == phases


def test_rank_of_no_candidates_is_empty(load: Load) -> None:
    none = np.empty(0, np.int64)
    result = load().rank(context={"user": column(1)}, candidate_ids=none, heads=("watch",), k=3)
    assert result.scores.size == result.heads["watch"].size == 0
    assert result.offsets.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("request_", "kind", "message"),
    [
        ({}, InvalidArgument, "no candidates; candidate_ids, candidate_features, or both"),
        (
            {"candidate_ids": np.full(31, 1000)},
            TooLarge,
            "the request has 31 candidates; at most 30 .*max_candidates",
        ),
        (
            {"candidate_ids": np.array([1000]), "offsets": np.array([0, 2])},
            InvalidArgument,
            r"offsets is .0 2. for 1 values",
        ),
        (
            {"candidate_ids": np.array([1000]), "heads": ("wach",)},
            InvalidArgument,
            "'wach'; .* did you mean 'watch'",
        ),
    ],
)
def test_rank_invalid_request_is_rejected_with_what_is_wrong(
    load: Load, request_: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        load({"max_candidates": 30}).rank(**{"context": {"user": column(1)}, **request_})


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
