"""The workloads at 1/5000 of their size, written once; benchmarks run as `make` does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.workloads import RankingWorkload, RetrievalWorkload, write_ranking, write_retrieval

ROOT = Path(__file__).parents[3]
SCALE = 0.0002


def printed_by(module: str, *options: str) -> str:
    """Runs a benchmark in a process of its own, which must succeed; returns what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", module, *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


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
