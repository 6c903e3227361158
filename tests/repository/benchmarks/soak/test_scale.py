"""The soak of routers and shards, small enough for every run of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.soak.scale import run

pytestmark = pytest.mark.slow


@pytest.mark.nightly
def test_five_disturbances_cause_no_wrong_response_and_no_failure_while_replicas_are_left(
    small_towers: Path,
) -> None:
    # Each kind of disturbance: of a replica, of a whole shard, of routers.
    assert run(moments=5, seed=17, towers=small_towers) == []
