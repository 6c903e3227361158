"""The soaks of version switches and of orders, at a size at which they keep from rotting."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.soak.orders import DEEDS, press
from tests.soak.switches import run

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="the load generator is C, and there is no compiler")


def test_versions_come_and_go_back_and_forth_under_load_without_a_failed_or_mixed_answer(small_towers: Path) -> None:
    wrong = run(versions=5, workers=1, block_s=0.2, towers=small_towers)
    assert [problem for problem in wrong if not problem.startswith("memory")] == [], "memory settles after 20 versions"


def test_orders_and_versions_that_cannot_be_served_fail_no_call(small_towers: Path) -> None:
    assert press(DEEDS, latest=1, rounds=1, workers=1, block_s=0.2, towers=small_towers) == []
