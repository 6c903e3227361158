"""The status that each worker reports to operators, as JSON, and the merge of all statuses."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import TypeAdapter

from service.observability.logging import latest_problems
from service.versions.lifecycle import VersionManager, VersionState

if TYPE_CHECKING:
    from service.versions.poller import Poller

_BY_DISTANCE = ("failed", "loading", "retiring", "kept", "available")
"""States of a version, the farthest from serving first."""


@dataclass(frozen=True)
class WorkerStatus:
    """One worker.

    Attributes:
      pid: The process id.
      revision: The revision of the desired state that the worker follows.
      state_problem: Why the worker cannot read the desired state; empty: it can.
      resident_bytes: The resident memory of the process.
      root_versions: The versions under the root, by model.
      models: The states of all versions, by model.
      problems: The newest warning or error of each event, as logged.
      shards: What each address of a shard holds, if the worker is a router.
    """

    pid: int
    revision: int
    state_problem: str
    resident_bytes: int
    root_versions: dict[str, list[int]]
    models: dict[str, tuple[VersionState, ...]]
    problems: tuple[dict[str, Any], ...] = ()
    shards: tuple[dict[str, Any], ...] = ()

    @classmethod
    def of(
        cls,
        manager: VersionManager,
        poller: Poller,
        resident_bytes: int,
        shards: Iterable[dict[str, Any]] = (),
    ) -> WorkerStatus:
        """Returns the status of this process."""
        # Before the versions: a command waits for its revision, and then reports their states.
        revision = poller.revision
        root_versions = dict(poller.root_versions)
        models = manager.models()
        problems = tuple(latest_problems())
        return cls(
            os.getpid(),
            revision,
            poller.state.problem,
            resident_bytes,
            root_versions,
            models,
            problems,
            tuple(shards),
        )

    def loaded(self, model: str) -> set[int]:
        """Returns the loaded versions of a model."""
        return {state.version for state in self.models.get(model, ()) if state.is_loaded}

    def to_json(self) -> bytes:
        """Returns the status for `read_statuses`."""
        return orjson.dumps(self)


_STATUS = TypeAdapter(WorkerStatus)


def read_statuses(documents: Iterable[bytes]) -> list[WorkerStatus]:
    """Returns the statuses of the workers that have reported one; a worker that has not reported
    yet has an empty document.
    """
    return [_STATUS.validate_json(document) for document in documents if document]


def merge_versions(statuses: Iterable[WorkerStatus]) -> dict[str, tuple[VersionState, ...]]:
    """Returns the versions of every model, newest first.

    If workers disagree about a version, it has the state that is farthest from serving, and its
    problem names the worker.
    """
    reports_by_model: dict[str, dict[int, list[tuple[int, VersionState]]]] = {}
    for status in statuses:
        for name, states in status.models.items():
            reports_by_version = reports_by_model.setdefault(name, {})
            for state in states:
                reports_by_version.setdefault(state.version, []).append((status.pid, state))
    return {
        name: tuple(_merge_reports(reports[version]) for version in sorted(reports, reverse=True))
        for name, reports in sorted(reports_by_model.items())
    }


def _merge_reports(reports: Sequence[tuple[int, VersionState]]) -> VersionState:
    """Merges the states of one version that workers report, each with its process id."""
    pid, worst = min(reports, key=lambda report: _BY_DISTANCE.index(report[1].state))
    if all(state.state == worst.state for _, state in reports):
        return worst
    return replace(worst, problem=f"worker {pid}: {worst.problem or worst.state}")
