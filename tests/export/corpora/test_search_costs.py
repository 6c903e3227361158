"""What the exporter measures of searches. How long they take is the machine's affair: the tests ask
what is measured, and that the numbers can be used.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.format import paths
from export.corpora.codes import write_codes
from export.corpora.indexes import build_index
from export.corpora.search_costs import SearchParts
from export.recipe.schema import IndexPart
from runtime.scann import ScannIndex
from runtime.vectors import VectorFile

SIZE = 5000
DIM = 16
CODES = {"scan_start", "scanned", "found", "code_gathered"}


def part(**changes: Any) -> IndexPart:
    return IndexPart(
        corpus="movies",
        query_tower="query",
        candidate_tower="candidate",
        recall={"value": 0.5},
        **changes,
    )


def staged(base: Path, size: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Writes vectors where the exporter does, and returns them."""
    vectors = np.random.default_rng(5).standard_normal((size, DIM), np.float32)
    path = base / paths.index_vectors("movies")
    path.parent.mkdir(parents=True)
    vectors.astype("<f4").tofile(path)
    return vectors


@pytest.mark.parametrize("distance", ["dot_product", "squared_l2", "cosine"])
@pytest.mark.parametrize("partitions", [1, 3])
def test_tree_with_codes_has_the_cost_of_every_part(
    tmp_path: Path, distance: Any, partitions: int
) -> None:
    vectors = staged(tmp_path, SIZE)
    write_codes(
        tmp_path, "movies", VectorFile(tmp_path / paths.index_vectors("movies"), DIM), distance
    )
    wanted = part(kind="tree_ah", distance=distance, partitions=partitions)
    costs = build_index(tmp_path, "movies", wanted, vectors[:30], coded=True).costs
    assert costs is not None
    assert costs.cached == SIZE
    values = costs.model_dump()
    assert all(math.isfinite(value) and value >= 0 for value in values.values())
    # A start of some microseconds beside an exact score of some nanoseconds: never lost in noise.
    assert min(costs.exact_start, costs.tree_start + costs.fetched, costs.scan_start) > 1
    assert max(costs.exact_start, costs.tree_start, costs.scan_start) < 1e8


def test_tree_without_codes_has_no_costs_of_scans(tmp_path: Path) -> None:
    vectors = staged(tmp_path, SIZE)
    costs = build_index(tmp_path, "movies", part(kind="tree_ah"), vectors[:30]).costs
    assert costs is not None
    assert costs.exact_start > 0
    assert {getattr(costs, name) for name in CODES} == {0}


def test_tree_of_a_few_vectors_has_costs(tmp_path: Path) -> None:
    vectors = staged(tmp_path, 20)
    tree = part(kind="tree_ah", parameters={"num_leaves": 1, "leaves_to_search": 1, "reorder": 20})
    costs = build_index(tmp_path, "movies", tree, vectors[:1]).costs
    assert costs is not None
    assert costs.leaf_vector == 0, "all searches cover the same leaf"


def test_index_by_brute_force_has_no_costs(tmp_path: Path) -> None:
    vectors = staged(tmp_path, 500)
    assert build_index(tmp_path, "movies", part(), vectors[:30]).costs is None


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
SCAN_SECONDS = {"scan_start": 2668, "scanned": 0.125, "found": 0.5, "code_gathered": 0.25}


def test_seconds_of_a_part_are_those_of_each_vector_that_a_larger_search_adds() -> None:
    parts = parts_of(20_000, 1024, 100)
    assert parts.cached == 1024
    assert parts.seconds(TIMED) == SECONDS
    assert parts.seconds(TIMED | SCANS) == SECONDS | SCAN_SECONDS


def test_seconds_of_a_larger_search_that_took_less_time_are_none() -> None:
    parts = parts_of(20_000, 1024, 100)
    faster = TIMED | SCANS | {"exact, many": 2000.0, "tree": 500.0, "scan few": 40.0}
    found = parts.seconds(faster)
    assert {name for name, part_s in found.items() if part_s == 0} == {
        "uncached",
        "tree_start",
        "scan_start",
    }


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
    found = parts_of(size, dim, leaves).seconds(TIMED)
    assert {name for name, part_s in found.items() if part_s == 0} == none
