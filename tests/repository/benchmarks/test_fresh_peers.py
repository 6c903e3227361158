"""Changes while serving beside the peers, small: that it runs, never how fast."""

from __future__ import annotations

import sys

import pytest

from benchmarks import fresh_peers
from benchmarks.peers.environments import ENVIRONMENTS, Environment

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


def test_changes_are_measured_without_the_peers_that_are_absent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The peers would cost minutes where they are installed.
    monkeypatch.setitem(ENVIRONMENTS, "fresh", Environment("absent", ()))
    options = "--scale 0.0005 --workers 1 --seconds 0.1 --rate 500"
    monkeypatch.setattr(sys, "argv", ["fresh_peers", *options.split()])
    fresh_peers.main()
    rowcast, *peers = [line for line in capsys.readouterr().out.splitlines() if "│" in line]
    recall, recall_after = rowcast.split("│")[3].split(", ")
    assert min(float(recall), float(recall_after)) > 0.9
    assert len(peers) == len(fresh_peers.PEERS)
    assert all("not installed" in peer for peer in peers)
