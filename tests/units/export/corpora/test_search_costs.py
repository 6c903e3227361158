"""What the exporter measures of searches. How long searches take depends on the machine: the
tests check which searches are measured, and that the numbers can be used.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.format import paths
from bundle.format.indexes import Index, Recall
from bundle.format.search_costs import SearchCosts
from export.corpora.codes import write_codes
from export.corpora.cost_process import CostTask, measure_in_process
from export.corpora.indexes import build_index, note_of_costs
from export.corpora.search_costs import SearchParts
from export.errors import ExportError
from export.recipe.schema import IndexSection, RecallSection
from runtime.scann import ScannIndex
from runtime.vectors import VectorFile
from tests.bundles.search_costs import COSTS

SIZE = 20_000
DIM = 16


def part(**changes: Any) -> IndexSection:
    return IndexSection(
        corpus="movies",
        query_tower="query",
        candidate_tower="candidate",
        recall=RecallSection(value=0.5),
        **changes,
    )


def staged(base: Path, size: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Writes vectors where the exporter does, and returns them."""
    vectors = np.random.default_rng(5).standard_normal((size, DIM), np.float32)
    path = base / paths.index_vectors("movies")
    path.parent.mkdir(parents=True)
    vectors.astype("<f4").tofile(path)
    return vectors


def test_tree_has_costs_that_can_be_true(tmp_path: Path) -> None:
    vectors = staged(tmp_path, SIZE)
    path = tmp_path / paths.index_vectors("movies")
    write_codes(tmp_path, "movies", VectorFile(path, DIM), "cosine")
    wanted = part(kind="tree_ah", distance="cosine", partitions=2)
    index = build_index(tmp_path, "movies", wanted, vectors[:30], coded=True)
    assert index.costs is not None
    assert index.costs.cached >= SIZE
    assert not index.implausible_cost(SIZE)


@pytest.mark.parametrize("coded", [False, True])
def test_tree_of_few_vectors_has_typical_costs(tmp_path: Path, coded: bool) -> None:
    vectors = staged(tmp_path, 500)
    index = build_index(tmp_path, "movies", part(kind="tree_ah"), vectors[:30], coded=coded)
    assert index.costs == SearchCosts.typical(DIM, coded=coded)
    assert not index.costs.measured
    assert note_of_costs("movies", index, 500) == ""


def test_costs_that_could_not_be_measured_are_noted() -> None:
    assert note_of_costs("movies", tree(COSTS), SIZE) == ""
    note = note_of_costs("movies", tree(SearchCosts.typical(DIM, coded=False)), SIZE)
    assert "index 'movies': this machine was too busy to measure what searches cost" in note


def test_process_that_fails_stops_the_export(tmp_path: Path) -> None:
    vectors = staged(tmp_path, 500)
    task = CostTask(
        name="movies",
        distance="cosine",
        directories=(tmp_path / "nowhere",),
        vectors=tmp_path / paths.index_vectors("movies"),
        size=500,
        dim=DIM,
        codes=None,
        queries=vectors[:1].tolist(),
        leaves=1,
    )
    with pytest.raises(ExportError, match="'movies': the process that measures its searches ended"):
        measure_in_process(task)


def test_index_by_brute_force_has_no_costs(tmp_path: Path) -> None:
    vectors = staged(tmp_path, 500)
    assert build_index(tmp_path, "movies", part(), vectors[:30]).costs is None


def tree(costs: SearchCosts) -> Index:
    """Returns the entry of a tree with some costs."""
    return Index(
        corpus="movies",
        query_tower="query",
        candidate_tower="candidate",
        kind="tree_ah",
        distance="dot_product",
        dim=DIM,
        directory="indexes/movies/scann",
        vectors="indexes/movies/vectors.bin",
        parameters={},
        recall=Recall(k=10, value=0.9, low=0.8, queries=30, target=0.5),
        costs=costs,
    )


def parts_of(size: int, dim: int, leaves: int) -> SearchParts:
    """Returns the parts of searches of a tree that is not searched."""
    vectors = np.broadcast_to(np.float32(0), (size, dim))
    return SearchParts(ScannIndex(None, "dot_product", size, dim, 10), vectors, leaves)


TIMED = {
    "exact, few": 1000.0,  # 256 vectors
    "exact, some": 2536.0,  # 768 more, of 2 each
    "exact, many": 24_040.0,  # 7168 more, of 3 each
    "gather few": 100.0,
    "gather some": 484.0,
    "reorder few": 50.0,  # 400 candidates
    "reorder many": 350.0,  # 1200 more
    "tree": 5000.0,  # 2 of 100 leaves, of 200 vectors each
    "tree, more leaves": 7400.0,  # 8 leaves more
    "tree, larger pool": 8300.0,  # 1200 candidates more
}
SCANS = {
    "scan few": 3000.0,  # 256 codes
    "scan many": 3992.0,  # 7936 more
    "find few": 200.0,  # 400 candidates
    "find many": 800.0,  # 1200 more
    "pack few": 10.0,
    "pack many": 1994.0,
}
SECONDS = {
    "unit": 2,
    "exact_start": 488,
    "uncached": 3,
    "gathered": 0.5,
    "reordered": 0.25,
    "tree_start": 4100,
    "leaf_vector": 1.5,
    "fetched": 0.75,
}
SCAN_SECONDS = {"scan_start": 2776, "scanned": 0.125, "found": 0.5, "code_gathered": 0.25}


def test_seconds_of_a_part_are_those_of_each_vector_that_a_larger_search_adds() -> None:
    parts = parts_of(20_000, 1024, 100)
    assert parts.cached == 1024
    assert parts.seconds(TIMED) == SECONDS
    assert parts.seconds(TIMED | SCANS) == SECONDS | SCAN_SECONDS


def test_seconds_of_a_larger_search_that_took_less_time_are_none() -> None:
    parts = parts_of(20_000, 1024, 100)
    faster = TIMED | SCANS | {"exact, many": 2000.0, "tree": 500.0, "scan few": 40.0}
    seconds = parts.seconds(faster)
    assert {name for name, part_s in seconds.items() if part_s == 0} == {
        "uncached",
        "tree_start",
        "scan_start",
    }


def test_scan_of_fewer_codes_than_the_pool_finds_no_more_candidates_than_these() -> None:
    parts = parts_of(20_000, 4096, 100)  # few: 64 vectors, some: 256, many: 2048
    seconds = parts.seconds(TIMED | SCANS | {"scan few": 100.0, "scan many": 1092.0})
    # 64 codes of 0.5 each are compared; 64 candidates are found, and reordered.
    assert seconds["scanned"] == 0.5
    assert seconds["scan_start"] == 100 - 64 * (0.5 + seconds["found"] + seconds["reordered"])


SIZE_TIMED = 100_000
DIM_TIMED = 64
QUIET = {
    "exact, few": 80e-6,  # 4,096 vectors of 10 ns
    "exact, some": 203e-6,
    "exact, many": 2220e-6,
    "gather few": 100e-6,
    "gather some": 570e-6,
    "reorder few": 20e-6,
    "reorder many": 50e-6,
    "tree": 17e-6,
    "tree, more leaves": 63e-6,
    "tree, larger pool": 113e-6,
    "scan few": 60e-6,
    "scan many": 220e-6,
    "find few": 80e-6,
    "find many": 200e-6,
    "pack few": 50e-6,
    "pack many": 1900e-6,
}
"""The shortest times of an index of 100,000 vectors of dim 64, as they were measured once."""


def series(times: Mapping[str, float], slower: float, seed: int) -> dict[str, list[float]]:
    """Returns a series of times, of which the shortest take some times as long as on a quiet
    machine.
    """
    random = np.random.default_rng(seed)
    return {
        name: [*(seconds * (slower + random.exponential(size=9))), seconds * slower]
        for name, seconds in times.items()
    }


def test_costs_are_those_of_the_shortest_times_whatever_slows_the_others() -> None:
    parts = parts_of(SIZE_TIMED, DIM_TIMED, 316)
    costs = parts.costs([series(QUIET, 1, seed=3)])
    assert costs.measured
    unit = (203e-6 - 80e-6) / (3 * 4096)
    assert costs.exact_start == pytest.approx(80e-6 / unit - 4096)
    assert costs.reordered == pytest.approx(30e-6 / 1200 / unit)
    # A machine that is slower by the same factor in all searches has the same costs.
    slower = parts.costs([series(QUIET, 4, seed=5)]).model_dump()
    assert slower == pytest.approx(costs.model_dump())


@pytest.mark.parametrize("name", ["exact, some", "exact, many", "reorder few", "gather few"])
def test_series_whose_costs_cannot_be_true_is_followed_by_another(name: str) -> None:
    parts = parts_of(SIZE_TIMED, DIM_TIMED, 316)
    disturbed = QUIET | {name: 30 * QUIET[name]}
    if name == "exact, many":
        disturbed["exact, some"] = 30 * QUIET["exact, some"]
    quiet = parts.costs([QUIET_SERIES])
    assert parts.costs([series(disturbed, 1, seed=1), QUIET_SERIES]) == quiet
    typical = parts.costs([series(disturbed, 1, seed=number) for number in range(3)])
    assert typical == SearchCosts.typical(DIM_TIMED, coded=True)


QUIET_SERIES = series(QUIET, 1, seed=2)


@pytest.mark.parametrize(
    ("size", "dim", "leaves", "none"),
    [
        (20, 16, 1, {"uncached", "leaf_vector"}),  # few: 5, some and many: 20
        (1, 16, 1, {"uncached", "leaf_vector", "unit", "gathered", "reordered", "fetched"}),
        (20, 1 << 24, 1, {"uncached", "leaf_vector", "unit", "gathered"}),  # few, some, many: 1
    ],
)
def test_seconds_of_a_part_that_no_larger_search_adds_to_are_none(
    size: int, dim: int, leaves: int, none: set[str]
) -> None:
    seconds = parts_of(size, dim, leaves).seconds(TIMED)
    assert {name for name, part_s in seconds.items() if part_s == 0} == none
