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
from export.recipe.schema import IndexPart
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
