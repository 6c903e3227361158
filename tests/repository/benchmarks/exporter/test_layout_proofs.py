"""Wrong and right statements of layouts, a few."""

from __future__ import annotations

import re

import pytest

from benchmarks.exporter.layout_proofs import DERIVED, RIGHT
from tests.laws.trained_stacks import OPTIMIZERS, WRONG
from tests.repository.benchmarks.conftest import printed_by

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


def test_right_statements_are_proved_and_wrong_ones_rejected() -> None:
    output = printed_by("benchmarks.exporter.layout_proofs", "--wrong", "30")
    counts = {
        cells[1].strip(): re.findall(r"(\d+) of (\d+)", line)
        for line in output.splitlines()
        if len(cells := line.split("│")) == len(OPTIMIZERS) + 3
    }
    assert set(counts) == {DERIVED, RIGHT, *WRONG}
    for statement, of_optimizers in counts.items():
        assert len(of_optimizers) == len(OPTIMIZERS)
        if statement in WRONG:
            assert all(rejected == drawn for rejected, drawn in of_optimizers), statement
        else:
            assert all(rejected == "0" for rejected, _ in of_optimizers), statement
