"""Clusters over bundles that the tests write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.units.service.shards.cluster import Cluster


@pytest.fixture
def cluster(root: Path, tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(root, tmp_path / "addresses")
    yield cluster
    cluster.close()
