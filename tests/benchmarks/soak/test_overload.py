"""The overload soak at a small size: that it runs, never how fast."""

from __future__ import annotations

import shutil

import pytest

from benchmarks.services import Checkout
from benchmarks.soak.overload import Plan, run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("cc") is None, reason="the load generator is C, and there is no compiler"
    ),
]
SCALE = 0.002


def test_overload_shows_each_block_by_the_peak_of_another_checkout(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run(
        Plan(
            workloads=("R",),
            connections=(4,),
            times=(2,),
            seconds=0.3,
            scale=SCALE,
            against=Checkout("other"),
        )
    )
    shown = capsys.readouterr().out.splitlines()
    blocks = [line.partition(" ")[2] for line in shown if "goodput" in line]
    assert [block.split(",")[0] for block in blocks] == [
        "R http 2 x",
        "R grpc 2 x",
    ]
    assert all("p99 ms of health checks nan" not in block for block in blocks)
