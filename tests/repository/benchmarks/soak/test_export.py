"""The soaks of the exporter, with a few cases of each."""

from __future__ import annotations

import re

import pytest

from tests.repository.benchmarks.conftest import printed_by

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


@pytest.mark.needs("tensorflow")
def test_computations_of_ids_are_compared_with_those_of_tensorflow() -> None:
    output = printed_by("benchmarks.soak.id_programs", "20", "--first", "0")
    assert "20 random programs from seed 0: 0 differ from TensorFlow" in output


@pytest.mark.needs("tensorflow")
def test_random_models_are_exported_and_compared() -> None:
    output = printed_by("benchmarks.soak.random_models", "2", "--first", "2")
    assert "2 random models from seed 2: 2 published, 0 rejected, 0 known to differ" in output


@pytest.mark.needs("tensorflow")
def test_damaged_checkpoints_are_read_or_rejected() -> None:
    cases = ("--case", "mid_level_sgd", "--case", "sharded_float32")
    output = printed_by("benchmarks.soak.damaged_checkpoints", "1", *cases)
    summary = re.search(
        r"(\d+) damaged checkpoints of 2 kinds, from seed \d+: (\d+) failed", output
    )
    assert summary is not None
    assert int(summary[1]) > 0
    assert int(summary[2]) == 0


@pytest.mark.needs("tensorflow")
def test_killed_exports_are_resumed() -> None:
    pytest.importorskip("ray")
    output = printed_by("benchmarks.soak.export", "--kills", "7", "--seed", "3")
    assert re.search(r"[67] kills in \d+ s, 0 wrong$", output, re.MULTILINE)
