"""Statuses of workers are written, read and merged."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from service.admin.status import WorkerStatus, merged_versions, read_statuses, write_status
from service.versions.lifecycle import State, VersionState


def status(pid: int, *states: VersionState) -> WorkerStatus:
    return WorkerStatus(pid, 3, "", 1 << 20, {"movies": [1, 2]}, {"movies": states})


def test_statuses_are_those_of_running_processes_by_their_ids(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as gone:
        pass
    for pid in (gone.pid, os.getpid(), os.getppid()):
        write_status(tmp_path, status(pid))
    (tmp_path / "worker-x.json").write_text("{}")
    assert [each.pid for each in read_statuses(tmp_path)] == sorted((os.getpid(), os.getppid()))
    assert not (tmp_path / f"worker-{gone.pid}.json").exists()


@pytest.mark.parametrize(
    ("first", "second", "state", "problem"),
    [
        ("available", "available", "available", ""),
        ("available", "failed", "failed", "worker 2: no memory"),
        ("loading", "available", "loading", "worker 1: loading"),
        ("kept", "available", "kept", "worker 1: kept"),
        ("available", "retiring", "retiring", "worker 2: retiring"),
    ],
)
def test_merged_version_has_the_state_that_is_farthest_from_serving(
    first: State, second: State, state: str, problem: str
) -> None:
    states = (
        VersionState(2, each, "no memory" if each == "failed" else "") for each in (first, second)
    )
    merged = merged_versions([status(pid, state) for pid, state in enumerate(states, 1)])
    assert [(each.version, each.state, each.problem) for each in merged["movies"]] == [
        (2, state, problem)
    ]
