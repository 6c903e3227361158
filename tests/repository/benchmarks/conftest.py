"""The workloads at 1/5000 of their size, written once."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.workloads import RankingWorkload, RetrievalWorkload, write_ranking, write_retrieval

SCALE = 0.0002


@pytest.fixture(scope="session")
def workload_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of the bundles of both workloads."""
    return tmp_path_factory.mktemp("workloads") / "bundles"


@pytest.fixture(scope="session")
def ranking(workload_root: Path) -> RankingWorkload:
    return write_ranking(workload_root, SCALE)


@pytest.fixture(scope="session")
def retrieval(workload_root: Path) -> RetrievalWorkload:
    return write_retrieval(workload_root, SCALE)
