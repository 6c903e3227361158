"""The workloads at 1/500 of their size, written once."""

from __future__ import annotations

import pytest

from benchmarks.run import Run
from benchmarks.services import Checkout
from benchmarks.workloads import RankingWorkload, RetrievalWorkload

SCALE = 0.002


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    scratch = tmp_path_factory.mktemp("bench")
    return Run(
        scratch,
        [Checkout("this"), Checkout("other")],
        SCALE,
        rounds=1,
        seconds=0.05,
        workers=1,
        callers=(2,),
    )


@pytest.fixture(scope="session")
def ranking(run: Run) -> RankingWorkload:
    return run.ranking


@pytest.fixture(scope="session")
def retrieval(run: Run) -> RetrievalWorkload:
    return run.retrieval
