"""`tables` jobs that are killed at any moment: the same command ends with the same bundle."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.random_cases import moments
from tests.units.export.forked_runs import ForkedRuns
from tests.units.export.killed_jobs import KILLED, Expected, Job, resume, tables_job, undisturbed

pytestmark = pytest.mark.slow

ROWS = 3000
HERE = ("--dtype", "t2=int8", "--dtype", "t4=bfloat16")
POOL = ("--workers", "2", *HERE)


@pytest.fixture(scope="module")
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    return tables_job(tmp_path_factory.mktemp("checkpoint"), ROWS, *request.param)


@pytest.fixture(scope="module")
def expected(forked: ForkedRuns, job: Job, tmp_path_factory: pytest.TempPathFactory) -> Expected:
    return undisturbed(forked, job, tmp_path_factory.mktemp("expected") / "place")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("job", "apart"), [(HERE, 7), (POOL, 11)], indirect=["job"], ids=["here", "pool"]
)
def test_tables_killed_before_a_change_of_a_file_resumes_to_the_same_bundle(
    request: pytest.FixtureRequest,
    forked: ForkedRuns,
    job: Job,
    apart: int,
    expected: Expected,
    tmp_path: Path,
) -> None:
    for number in moments(request, apart):
        status = forked.run(
            job.arguments(tmp_path / "bundles"), tmp_path / "output", operation=number
        )
        if status == 0:
            break
        assert status in KILLED
        resume(forked, job, tmp_path, expected)
        shutil.rmtree(tmp_path / "bundles")
    assert number > 20
