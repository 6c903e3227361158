"""The comparison of workers and threads at 1/500 of its size: that it runs, never how fast."""

from __future__ import annotations

import shutil
from pathlib import Path

from rich.console import Console

from tests.bench.workers import index_bytes_of, measure, show, starts, table_bytes_of
from tests.bench.workloads import RankingWorkload, RetrievalWorkload


def test_arrangements_answer_all_they_are_asked_and_are_told(
    workloads_root: Path, ranking: RankingWorkload, retrieval: RetrievalWorkload
) -> None:
    found = measure(workloads_root, ranking, retrieval, 1, 0.05, arrangements=((1, 1), (2, 1)))
    assert [(each.workers, each.threads) for each in found] == [(1, 1), (2, 1)]
    for each in found:
        assert each.memory_bytes > 20e6
        assert {block.failed for blocks in each.blocks.values() for block in blocks.values()} == {0}
    console = Console(record=True, width=220)
    show(found, table_bytes_of(ranking.directory), index_bytes_of(retrieval.directory), console)
    told = console.export_text()
    assert "2 x 1" in told
    assert "one more worker of 1 threads: " in told


def test_starts_are_told_without_and_with_a_vast_table(ranking: RankingWorkload, tmp_path: Path) -> None:
    directory = tmp_path / ranking.model / "1"
    shutil.copytree(ranking.directory, directory)
    console = Console(record=True, width=220)
    starts(tmp_path, directory, 1, 1 << 40, console)
    assert "with a table of 1024 GiB: ready after" in console.export_text()
