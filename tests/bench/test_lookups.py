from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.bench import cold_rows, lookups


@pytest.mark.skipif(shutil.which("cc") is None, reason="the loop needs a C compiler")
def test_lookups_measure_every_case_by_the_loop_and_both_ways(tmp_path: Path) -> None:
    program = lookups.compile_loop(tmp_path)
    found = list(lookups.rates(tmp_path, program, 3000, 10_000, 1, 0.001, "wall"))
    assert len({(case, threads) for case, threads, _ in found}) == 3 * 2 * 2 * 2
    assert all(rate > 0 for _, _, best in found for rate in best.values())


def test_cold_rows_are_measured_each_way(tmp_path: Path) -> None:
    page = lookups.write_table(tmp_path, "float32", 3000)
    ids = lookups.write_ids(tmp_path, 3000, 10_000)["Zipf"]
    found = dict(cold_rows.starts(tmp_path, page, ids, 0.05))
    assert len(found) == 10
    assert all(sum(start.per_second) > 0 for start in found.values())
