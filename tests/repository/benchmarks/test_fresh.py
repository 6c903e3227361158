"""Changes while serving, small: that every figure is measured, never how fast."""

from __future__ import annotations

import re

import pytest

from tests.repository.benchmarks.conftest import printed_by

pytestmark = [pytest.mark.slow, pytest.mark.nightly]
SMALL = (
    "--scale 0.0002 --workers 1 --new 4 --seconds 0.1 --load 0.05 --blocks 1 --block-seconds 1 "
    "--changed 60 --records 1000 --cpu-seconds 0.2"
)
FIGURES = (
    r"visible: p50 (\S+) ms",
    r"queries alone, (\S+) per second: p50",
    r"block 1, (\S+) changes per second: p50",
    r"queries alone again: p50 (\S+) ms",
    r"p99 beside changes: (\S+) x that alone",
    r"many changes: \S+ queries per second; with 60 changed candidates (\S+)",
    r"restart: \S+ s without a log, (\S+) s with 60 changes in it",
    r"replay: (\S+) s with 1,000 records in the log",
    r"live recall of 1 % of queries: (\S+) ms of CPU time for a query",
)


def test_changes_are_measured_at_every_step() -> None:
    output = " ".join(printed_by("benchmarks.fresh", *SMALL.split()).split())
    for figure in FIGURES:
        measured = re.search(figure, output)
        assert measured is not None, (figure, output)
        assert float(measured[1]) > 0, measured[0]
