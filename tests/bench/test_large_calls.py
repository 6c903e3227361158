"""The bench of large calls at 1/500 of its size: that it runs, never how fast."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from tests.bench.large_calls import CALLERS, WAYS, measure, show
from tests.bench.workloads import RankingWorkload


def test_calls_of_every_size_are_answered_in_each_way_and_told(workloads_root: Path, ranking: RankingWorkload) -> None:
    found = measure(workloads_root, ranking, 1, 0.05, sizes=(200, 5_000))
    assert set(found) == {(200, callers) for callers in CALLERS[200]} | {(5_000, 1)}
    for blocks in found.values():
        assert set(blocks) == set(WAYS)
        assert {block.failed for block in blocks.values()} == {0}
    console = Console(record=True, width=200)
    show(found, "R", console)
    assert "pieces / whole" in console.export_text()
