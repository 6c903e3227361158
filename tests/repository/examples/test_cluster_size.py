"""What the page on sizes shows is what the script prints; the chance of losing a shard is that of
all failures.
"""

from __future__ import annotations

import sys
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest

from examples import cluster_size

PAGE = Path(__file__).parents[3] / "docs/how-to/size-a-cluster.md"


def test_page_shows_what_the_script_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["cluster_size", "--table-bytes", "10e12", "--nodes", "32"])
    cluster_size.main()
    assert capsys.readouterr().out in PAGE.read_text()


@pytest.mark.parametrize(
    ("shards", "replicas", "failed"), [(4, 2, 3), (3, 2, 4), (2, 3, 3), (5, 1, 1), (4, 4, 3)]
)
def test_chance_of_losing_a_shard_is_the_share_of_all_failures_that_lose_one(
    shards: int, replicas: int, failed: int
) -> None:
    failures = [*combinations([*range(shards)] * replicas, failed)]
    lost = [replicas in Counter(failure).values() for failure in failures]
    share = sum(lost) / len(failures)
    assert cluster_size.lost_share(shards, replicas, failed) == pytest.approx(share)
