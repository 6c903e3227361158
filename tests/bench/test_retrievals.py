"""The costs of retrievals at 1/500 of their size: that they are measured, never how low they are."""

from __future__ import annotations

from rich.console import Console

from tests.bench.retrievals import JOINED, measure, show
from tests.bench.workloads import RetrievalWorkload


def test_costs_of_retrievals_are_measured_and_told(retrieval: RetrievalWorkload) -> None:
    costs = measure(retrieval, 1)
    assert set(costs.joined) == set(costs.batched) == set(JOINED)
    assert min(costs.bare, costs.searched, *costs.joined.values(), *costs.batched.values()) > 0
    console = Console(record=True, width=120)
    show(costs, console)
    assert "ScaNN one by one" in console.export_text()
