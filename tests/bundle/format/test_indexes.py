"""The entry of an index in the manifest."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from bundle.format.manifest import Index
from tests.bundles.search_costs import COSTS

TREE: dict[str, Any] = {
    "corpus": "movies",
    "query_tower": "query",
    "candidate_tower": "candidate",
    "kind": "tree_ah",
    "distance": "cosine",
    "dim": 8,
    "directory": "indexes/movies/scann",
    "vectors": "indexes/movies/vectors.bin",
    "parameters": {"num_leaves": 9, "leaves_to_search": 3, "dimensions_per_block": 2, "reorder": 9},
    "recall": {"k": 10, "value": 0.96, "low": 0.94, "queries": 100, "target": 0.95},
    "costs": COSTS.model_dump(),
}


def test_tree_without_costs_is_rejected() -> None:
    assert Index.model_validate(TREE).costs == COSTS
    with pytest.raises(ValidationError, match="a tree_ah index has no costs; export the bundle"):
        Index.model_validate(TREE | {"costs": None})


def test_index_by_brute_force_needs_no_costs() -> None:
    assert Index.model_validate(TREE | {"kind": "brute_force", "costs": None}).costs is None


@pytest.mark.parametrize("wrong", [-1.0, math.inf, math.nan])
def test_cost_that_is_no_cost_is_rejected(wrong: float) -> None:
    with pytest.raises(ValidationError, match=r"costs\.scanned"):
        Index.model_validate(TREE | {"costs": TREE["costs"] | {"scanned": wrong}})
