"""Many candidates divided over idle threads: the same answers as of one thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.columns import Column
from bundle.errors import FeatureError
from bundle.manifest import CrossedIds, CrossKey, EmbeddedFeature
from service.errors import InvalidArgument
from tests.service.engine.served import Served, column
from tests.service.small_bundle import GENRE_NAMES, GENRES

Load = Callable[..., Served]
HEADS = ("watch", "rating")
KEYS = (CrossKey(dtype="int64", role="context"), CrossKey(dtype="string", role="candidate", default=[]))
CROSSED = EmbeddedFeature(
    kind="bag",
    table="genres",
    role="candidate",
    inputs=("user", "genres"),
    ids=CrossedIds(keys=KEYS, buckets=GENRES),
    combiner="sum",
)
COUNTERS = ("rowcast_oov_ids_total", "rowcast_feature_examples_total")


def random_ranking(ids: NDArray[Any], seed: int) -> dict[str, Any]:
    """Returns a request with contexts of any number of candidates, and any of the candidates' features sent."""
    random = np.random.default_rng(seed)
    m, n = int(random.integers(8, 90)), int(random.integers(1, 6))
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
        "candidates": {name: column for name, column in candidates.items() if random.random() < 0.5},
        "offsets": np.array([0, *np.sort(random.integers(0, m + 1, n - 1)), m]),
        "heads": HEADS if seed % 2 else (),
        "k": (0, 1, 40)[seed % 3],
    }


@pytest.mark.parametrize(
    "options",
    [{}, {"parts": True}, {"parts": True, "features": {"genres": CROSSED}}],
    ids=["whole", "parts", "crossed"],
)
def test_rank_divided_has_the_same_bits_and_counts(
    load: Load, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setattr("service.engine.scoring._RANGE_MIN", 4)
    whole, divided = load(**options), load(threads=3, model="again", **options)
    counters = divided.counted()

    for seed in range(25):
        for counter in counters.values():
            counter.examples.clear()
        request = random_ranking(whole.small.ids, seed)
        found, expected = divided.rank(**request), whole.rank(**request)
        m = len(request["candidate_ids"])
        assert len(counters["trunk" if options else "whole"].examples) == min(4, m // 4)
        assert found.scores.tobytes() == expected.scores.tobytes()
        assert found.positions.tolist() == expected.positions.tolist()
        assert found.offsets.tolist() == expected.offsets.tolist()
        for head in request["heads"]:
            assert found.heads[head].tobytes() == expected.heads[head].tobytes()
    for name in COUNTERS:
        for feature in ("movie", "genres", "user"):
            values = {each.value(name, model=each.small.manifest.model, feature=feature) for each in (whole, divided)}
            assert len(values) == 1
            assert name == COUNTERS[0] or values != {0.0}


def test_rank_divided_uses_all_threads_and_runs_context_parts_once(load: Load) -> None:
    service = load(threads=2, parts=True)
    counters = service.counted()
    counters["trunk"].barrier = threading.Barrier(3)
    service.rank(context={"user": column(1)}, candidate_ids=service.small.ids[np.arange(1536) % 40])
    assert counters["trunk"].examples == [512] * 3
    assert len(counters["trunk"].threads) == 3
    assert counters["context"].examples == [1]


@pytest.mark.parametrize(("m", "saved_model"), [(1023, False), (1536, True)])
def test_rank_of_few_candidates_or_by_tensorflow_is_not_divided(load: Load, m: int, saved_model: bool) -> None:
    service = load(threads=2)
    if saved_model:  # what decides is the form
        tower = service.version.towers["ranking"]
        parts = tuple(replace(part, form=tower.entry.forms[0]) for part in tower.parts)
        towers = {**service.version.towers, "ranking": replace(tower, parts=parts)}
        service.version = replace(service.version, towers=towers)
    counters = service.counted()
    service.rank(context={"user": column(1)}, candidate_ids=service.small.ids[np.arange(m) % 40])
    assert counters["whole"].examples == [m]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda movies: Column(np.where(np.arange(1536) == 700, 5, movies)), "id 5 is not in table 'movies'"),
        (lambda movies: Column(movies[:1535]), "1535 values"),
        (lambda movies: Column(movies, np.arange(1537)[::-1].copy()), "offsets must begin with 0"),
        (lambda movies: Column(movies, None, np.ones(1536, np.float32)), "takes none"),
    ],
)
def test_rank_divided_rejects_invalid_columns_as_undivided(load: Load, change: Any, message: str) -> None:
    found = []
    for service in (load(threads=2), load(model="again")):
        movies = service.small.ids[np.arange(1536) % 40]
        with pytest.raises((FeatureError, InvalidArgument), match=message) as rejected:
            service.rank(context={"user": column(1)}, candidates={"movie": change(movies)}, candidate_ids=movies)
        found.append(str(rejected.value))
    assert found[0] == found[1]


def test_retrieve_exactly_by_several_threads_finds_the_same(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.exact._BLOCK_BYTES", 4 * 8 * 16)
    several, one = load(threads=3, size=400), load(model="again", size=400)
    request = {"k": 30, "features": {"user": column(3, 9, 1)}, "exact": True}
    found, expected = (each.retrieve(**request).neighbors for each in (several, one))
    assert found.ids.tobytes() == expected.ids.tobytes()
    assert found.scores.tobytes() == expected.scores.tobytes()
    assert [last - first for first, last in pairwise(found.offsets.tolist())] == [30] * 3
