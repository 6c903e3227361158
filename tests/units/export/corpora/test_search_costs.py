"""What the exporter measures of searches. How long searches take depends on the machine: the
numbers can be used, and those of a busy machine are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.format import paths
from bundle.format.search_costs import SearchCosts
from export.corpora.codes import write_codes
from export.corpora.cost_process import CostTask, measure_in_process
from export.corpora.indexes import build_index, note_of_costs
from export.corpora.search_costs import SearchParts
from export.errors import ExportError
from export.recipe.schema import IndexSection
from runtime.scann import ScannIndex
from runtime.vectors import VectorFile

SIZE = 20_000
DIM = 16


def staged(base: Path, size: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Writes vectors where the exporter does, and returns them."""
    vectors = np.random.default_rng(5).standard_normal((size, DIM), np.float32)
    path = base / paths.index_vectors("movies")
    path.parent.mkdir(parents=True)
    vectors.astype("<f4").tofile(path)
    return vectors


TREE = IndexSection.model_validate(
    {
        "corpus": "movies",
        "query_tower": "query",
        "candidate_tower": "candidate",
        "kind": "tree_ah",
        "distance": "cosine",
        "recall": {"value": 0.5},
    }
)


def test_tree_has_costs_that_can_be_true_and_one_of_few_vectors_typical_ones(
    tmp_path: Path,
) -> None:
    vectors = staged(tmp_path / "large", SIZE)
    file = VectorFile(tmp_path / "large" / paths.index_vectors("movies"), DIM)
    write_codes(tmp_path / "large", "movies", file, "cosine")
    halves = TREE.model_copy(update={"partitions": 2})
    index = build_index(tmp_path / "large", "movies", halves, vectors[:30], coded=True)
    assert index.costs is not None
    assert index.costs.cached >= SIZE
    assert not index.implausible_cost(SIZE)
    # A machine that is too busy to measure is noted, but not for trees that are never measured.
    typical = SearchCosts.typical(DIM, coded=True)
    unmeasured = index.model_copy(update={"costs": typical})
    assert "too busy" in note_of_costs("movies", unmeasured, SIZE)

    few_vectors = staged(tmp_path / "small", 500)
    index = build_index(tmp_path / "small", "movies", TREE, few_vectors[:30], coded=True)
    assert index.costs == typical
    assert note_of_costs("movies", index, 500) == ""


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
    with pytest.raises(ExportError, match="process that measures its searches ended"):
        measure_in_process(task)


def parts_of(size: int, dim: int, leaves: int) -> SearchParts:
    """Returns the parts of searches of a tree that is not searched."""
    vectors = np.broadcast_to(np.float32(0), (size, dim))
    return SearchParts(ScannIndex(None, "dot_product", size, dim, 10), vectors, leaves)


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
    """Returns times of which the shortest take some times as long as on a quiet machine."""
    random = np.random.default_rng(seed)
    return {
        name: [*(seconds * (slower + random.exponential(size=9))), seconds * slower]
        for name, seconds in times.items()
    }


@pytest.mark.parametrize("name", ["exact, some", "exact, many", "reorder few", "gather few"])
def test_costs_are_those_of_the_shortest_times_that_can_be_true(name: str) -> None:
    parts = parts_of(100_000, 64, 316)
    quiet = parts.costs([series(QUIET, 1, seed=2)])
    assert quiet.measured
    # A machine that is slower by the same factor in all searches has the same costs.
    slower = parts.costs([series(QUIET, 4, seed=5)]).model_dump()
    assert slower == pytest.approx(quiet.model_dump())
    disturbed = QUIET | {name: 30 * QUIET[name]}
    if name == "exact, many":
        disturbed["exact, some"] = 30 * QUIET["exact, some"]
    assert parts.costs([series(disturbed, 1, seed=1), series(QUIET, 1, seed=2)]) == quiet
    typical = parts.costs([series(disturbed, 1, seed=number) for number in range(3)])
    assert typical == SearchCosts.typical(64, coded=True)
