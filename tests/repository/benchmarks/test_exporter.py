"""The exporter's benchmark of a checkpoint whose size is that of no machine's memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.exporter import contests


@pytest.mark.nightly
@pytest.mark.slow
def test_terabyte_is_inspected_planned_and_linked_in_little_memory(tmp_path: Path) -> None:
    steps = contests.contest_sizes(tmp_path, {"1 TiB": 1 << 40})["1 TiB"]
    assert set(steps) == {"inspect", "plan", "link"}
    assert max(ran.peak_bytes for ran in steps.values()) <= 400 << 20
    assert json.loads(steps["inspect"].out)["dense"][0]["bytes"] == 1 << 40
