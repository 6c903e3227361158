"""Clusters over bundles that the tests write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from service.shards import replica
from tests.e2e.process import WAIT_S
from tests.units.service.shards.cluster import Cluster


@pytest.fixture
def _unhurried_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """No shard counts as gone because the machine is busy."""
    monkeypatch.setattr(replica, "_DESCRIBE_S", WAIT_S)


@pytest.fixture
def cluster(root: Path, tmp_path: Path, _unhurried_polls: None) -> Iterator[Cluster]:
    cluster = Cluster(root, tmp_path / "addresses")
    yield cluster
    cluster.close()
