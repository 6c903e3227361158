"""The bench of rankings at 1/500 of its size, so that it never rots."""

from __future__ import annotations

from pathlib import Path

from tests.bench.rankings import CANDIDATES, PRECISIONS, STEPS, TOGETHER, measure


def test_bench_of_rankings_measures_every_way(tmp_path: Path) -> None:
    steps, joined = measure(tmp_path, 0.002, 1)
    assert set(steps) == {(model, precision) for model in ("parts", "whole") for precision in PRECISIONS}
    assert set(joined) == {(precision, m) for precision in PRECISIONS for m in CANDIDATES}
    assert all(0 < us[step] < 60e6 for us in steps.values() for step in STEPS)
    assert all(0 < us[count] < 60e6 for us in joined.values() for count in TOGETHER)
