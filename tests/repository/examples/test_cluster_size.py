"""What the page on sizes shows is what the script prints; the chance of losing a shard agrees with
drawn failures.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
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
def test_chance_of_losing_a_shard_is_that_of_drawn_failures(
    shards: int, replicas: int, failed: int
) -> None:
    random = np.random.default_rng(0)
    lost = 0
    for _ in range(20_000):
        down = random.choice(shards * replicas, failed, replace=False) % shards
        lost += np.bincount(down).max() == replicas
    assert cluster_size.lost_share(shards, replicas, failed) == pytest.approx(
        lost / 20_000, abs=0.02
    )
