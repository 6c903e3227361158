"""The entry of an index in the manifest."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from bundle.format.manifest import Index
from bundle.format.search_costs import SearchCosts
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


def tree(dim: int, **costs: Any) -> Index:
    return Index.model_validate(TREE | {"dim": dim, "costs": COSTS.model_dump() | costs})


MEASURED = {
    16: "1210 5000 0 0.585 1.07 231 0.19 0.0531",
    64: "3680 16384 1.66 5.76 2.34 1210 0.164 4.2",
    256: "487 4096 2.36 2.61 1.92 324 0.138 0.585",
    1024: "201 1024 1.34 2.66 3.13 267 0.145 0.0542",
    4096: "181 256 2.4 2.79 4.45 296 0.168 0",
}
"""The costs that were measured for 5,000 vectors, by their dim."""
NAMES = [
    "exact_start",
    "cached",
    "uncached",
    "gathered",
    "reordered",
    "tree_start",
    "leaf_vector",
    "fetched",
]


@pytest.mark.parametrize("dim", MEASURED)
def test_measured_and_typical_costs_can_be_true(dim: int) -> None:
    numbers = map(float, MEASURED[dim].split())
    costs = dict(zip(NAMES, numbers, strict=True))
    costs["cached"] = int(costs["cached"])
    assert tree(dim, **costs).implausible_cost(5000) == ""
    for coded in (False, True):
        typical = SearchCosts.typical(dim, coded=coded)
        assert typical.implausible_part(10**9, dim, coded=coded) == ""


@pytest.mark.parametrize(
    ("name", "cost"),
    [
        ("exact_start", 0.0),
        ("exact_start", 1e9),
        ("uncached", 0.01),
        ("gathered", 0.001),
        ("reordered", 0.01),
        ("leaf_vector", 0.0),
        ("fetched", 1e9),
    ],
)
def test_cost_that_cannot_be_true_is_named(name: str, cost: float) -> None:
    index = tree(64, **{name: cost})
    assert index.implausible_cost(10**6).startswith(f"{name} is {cost:g}; for vectors of dim 64, ")


def test_costs_of_codes_and_of_uncached_vectors_are_judged_where_there_are_any() -> None:
    assert tree(64, scanned=0.0).implausible_cost(10**6) == ""
    codes = {"file": "codes/a", "codebook": "codes/b"}
    costs = COSTS.model_dump() | {"scanned": 0.0}
    coded = Index.model_validate(TREE | {"dim": 64, "costs": costs, "codes": codes})
    assert coded.implausible_cost(10**6).startswith("scanned is 0; ")
    assert tree(64, uncached=0.0).implausible_cost(COSTS.cached) == ""
    assert tree(64, uncached=0.0).implausible_cost(COSTS.cached + 1).startswith("uncached is 0; ")
