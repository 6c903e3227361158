"""The soaks of version switches and of commands, small enough for every run of the tests."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks.soak.commands import ACTIONS, press
from benchmarks.soak.switches import Pace, run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("cc") is None, reason="the load generator is C, and there is no compiler"
    ),
]
GENTLE = Pace(block_s=0.1, share=0.1, pause_s=0.25)
"""Beside more requests, the service takes its time to load a version."""


@pytest.mark.nightly
def test_switches_under_load_fail_no_request_and_mix_no_response(small_towers: Path) -> None:
    wrong = run(versions=4, workers=1, pace=GENTLE, towers=small_towers)
    assert [problem for problem in wrong if not problem.startswith("memory")] == [], (
        "memory settles after 20 versions"
    )


@pytest.mark.nightly
def test_commands_and_versions_that_cannot_be_served_fail_no_request(small_towers: Path) -> None:
    assert press(ACTIONS, latest=1, rounds=1, workers=1, pace=GENTLE, towers=small_towers) == []
