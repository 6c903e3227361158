"""Statuses of workers are reported, read and merged."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from service.admin.status import WorkerStatus, merge_versions, read_statuses
from service.versions.lifecycle import State, VersionState


def status(pid: int, *states: VersionState) -> WorkerStatus:
    return WorkerStatus(pid, 3, "", 1 << 20, {"movies": [1, 2]}, {"movies": states})


def test_statuses_are_those_of_workers_that_have_told_theirs() -> None:
    statuses = [status(pid, VersionState(2, "available", current=True)) for pid in (3, 5)]
    assert read_statuses([b"", *(worker.to_json() for worker in statuses)]) == statuses


def test_status_has_no_newer_revision_than_the_versions_that_it_lists() -> None:
    poller: Any = SimpleNamespace(revision=7, root_versions={}, state=SimpleNamespace(problem=""))

    def arranged_meanwhile() -> dict[str, tuple[VersionState, ...]]:
        poller.revision = 8
        return {}

    manager: Any = SimpleNamespace(models=arranged_meanwhile)
    assert WorkerStatus.of(manager, poller, 1 << 20).revision == 7


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
        VersionState(2, state_name, "no memory" if state_name == "failed" else "")
        for state_name in (first, second)
    )
    merged = merge_versions([status(pid, state) for pid, state in enumerate(states, 1)])
    assert [(version.version, version.state, version.problem) for version in merged["movies"]] == [
        (2, state, problem)
    ]
