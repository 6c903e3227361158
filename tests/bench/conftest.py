"""The workloads at 1/500 of their size, written once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.bench.workloads import RankingWorkload, RetrievalWorkload, write_ranking, write_retrieval

SCALE = 0.002


@pytest.fixture(scope="session")
def workloads_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("workloads")


@pytest.fixture(scope="session")
def ranking(workloads_root: Path) -> RankingWorkload:
    return write_ranking(workloads_root, SCALE)


@pytest.fixture(scope="session")
def retrieval(workloads_root: Path) -> RetrievalWorkload:
    work = write_retrieval(workloads_root, SCALE)
    np.save(work.directory.parent / "queries.npy", work.vectors)
    return work
