"""The soak of fronts and shards, small enough for every run of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.scale import run

pytestmark = pytest.mark.slow


def test_ten_disturbances_give_no_wrong_answer_and_fail_no_request_while_replicas_are_left(
    small_towers: Path,
) -> None:
    assert run(moments=10, seed=0, towers=small_towers) == []
