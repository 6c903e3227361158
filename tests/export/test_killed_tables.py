"""`tables` jobs that are killed at any moment, and disks that fail: the same command ends with the same bundle."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.export.commands import Done
from tests.export.exporting import aside, visible
from tests.export.forked_runs import ForkedRuns
from tests.export.killed_jobs import KILLED, Expected, Job, resume, tables_job, undisturbed
from tests.export.refused_calls import POSSIBLE

ROWS = 3000
HERE = ("--dtype", "t2=int8", "--dtype", "t4=bfloat16")
POOL = ("--workers", "2", *HERE)
needs_filter = pytest.mark.skipif(not POSSIBLE, reason="the kernel's filter of system calls is not known here")


@pytest.fixture(scope="module")
def light() -> Iterator[ForkedRuns]:
    runs = ForkedRuns(tables_only=True)
    yield runs
    runs.close()


@pytest.fixture(scope="module")
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    return tables_job(tmp_path_factory.mktemp("checkpoint"), ROWS, *request.param)


@pytest.fixture(scope="module")
def expected(light: ForkedRuns, job: Job, tmp_path_factory: pytest.TempPathFactory) -> Expected:
    return undisturbed(light, job, tmp_path_factory.mktemp("expected") / "place")


@pytest.mark.parametrize("job", [HERE, POOL], indirect=True, ids=["here", "pool"])
def test_tables_killed_at_any_moment_resumes_to_the_same_bundle(
    light: ForkedRuns, job: Job, expected: Expected, tmp_path: Path
) -> None:
    moments, killed = random.Random(3), 0
    for _ in range(3):
        dies = {"seconds": moments.uniform(0.1, 0.9) * expected.seconds}
        killed += light.run(job.arguments(tmp_path / "bundles"), tmp_path / "output", **dies) in KILLED
        resume(light, job, tmp_path, expected)
        shutil.rmtree(tmp_path / "bundles")
    assert killed >= 1


@pytest.mark.parametrize("job", [HERE], indirect=True)
def test_tables_killed_before_every_third_change_of_a_file_resumes_to_the_same_bundle(
    light: ForkedRuns, job: Job, expected: Expected, tmp_path: Path
) -> None:
    for number in range(1, 1000, 3):
        status = light.run(job.arguments(tmp_path / "bundles"), tmp_path / "output", operation=number)
        if status == 0:
            break
        assert status in KILLED
        resume(light, job, tmp_path, expected)
        shutil.rmtree(tmp_path / "bundles")
    assert number > 30


def told(output: Path) -> str:
    return Done(None, "", output.read_text()).told


@needs_filter
@pytest.mark.parametrize("job", [HERE], indirect=True)
@pytest.mark.parametrize(
    ("calls", "code", "status", "words"),
    [
        (["preadv", "preadv2"], "EIO", 3, ["ckpt.data-0000", "cannot be read at byte", "it resumes"]),
        (["write", "pwrite64"], "EIO", 6, ["shard", "cannot be written: Input/output error"]),
        (["write", "pwrite64"], "ENOSPC", 6, ["shard", "cannot be written: No space left on device"]),
        (["fsync"], "EIO", 6, ["Input/output error"]),
        (["rename"], "EIO", 6, ["Input/output error"]),
    ],
)
def test_tables_on_a_disk_that_fails_are_told_then_resumed(
    light: ForkedRuns,
    job: Job,
    expected: Expected,
    tmp_path: Path,
    calls: list[str],
    code: str,
    status: int,
    words: Any,
) -> None:
    root, output = tmp_path / "bundles", tmp_path / "output"
    assert light.run(job.arguments(root), output, noted=4) in KILLED
    assert light.run(job.arguments(root), output, refused={"calls": calls, "errno": code}) == status, output.read_text()
    assert [word for word in words if word not in told(output)] == []
    assert visible(root) == []
    assert aside(root) == [".staging-1", ".staging-1.journal"]
    resume(light, job, tmp_path, expected)
