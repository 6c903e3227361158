"""The benchmark of fronts and shards at 1/500 of its size: that it runs, never how fast."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.bench.scale.__main__ import Cluster, Local, measure, sheet, workloads

pytestmark = pytest.mark.slow


def test_a_front_and_one_process_are_measured_on_both_workloads(tmp_path: Path) -> None:
    root = tmp_path / "bundles"
    works = workloads(root, 0.002)
    with closing(Local(root, tmp_path)) as local, closing(Cluster(root, tmp_path, 2)) as front:
        found = {work.name: measure(work, (local, front), rounds=1, seconds=0.2) for work in works}
    rows = sheet(found, 2).records()
    assert [row["workload"] for row in rows] == ["R", "Q"]
    for row in rows:
        assert row["failed"] == "0.0%"
        assert float(row["bytes answered by bytes of rows"]) > 0.5
