"""Costs of searches for trees that are written without the exporter."""

from __future__ import annotations

from bundle.format.search_costs import SearchCosts

COSTS = SearchCosts(
    exact_start=9000,
    cached=16384,
    uncached=2.5,
    gathered=12,
    reordered=5,
    tree_start=5000,
    leaf_vector=0.4,
    fetched=10,
    scan_start=9000,
    scanned=0.4,
    found=15,
    code_gathered=9,
)
"""As they were measured once, so that the tests take the same ways on every machine."""
