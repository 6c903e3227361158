"""What each worker reports of itself to operators, as JSON, and the merge of all workers."""

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
      revision: of the desired state that the worker follows.
      state_problem: why it cannot read the desired state; empty: it can.
      known: the versions under the root, by model.
      models: the states of all versions, by model.
      problems: the newest warning or error of each event, as logged.
      shards: of a router, what each address of a shard holds.
    """

    pid: int
    revision: int
    state_problem: str
    resident_bytes: int
    known: dict[str, list[int]]
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
        known = dict(poller.known)
        models = manager.models()
        problems = tuple(latest_problems())
        return cls(
            os.getpid(),
            revision,
            poller.state.problem,
            resident_bytes,
            known,
            models,
            problems,
            tuple(shards),
        )

    def loaded(self, model: str) -> set[int]:
        """Returns the loaded versions of a model."""
        return {each.version for each in self.models.get(model, ()) if each.is_loaded}

    def to_json(self) -> bytes:
        """Returns the status for `read_statuses`."""
        return orjson.dumps(self)


_STATUS = TypeAdapter(WorkerStatus)


def read_statuses(documents: Iterable[bytes]) -> list[WorkerStatus]:
    """Returns the statuses of workers that have told theirs."""
    return [_STATUS.validate_json(document) for document in documents if document]


def merged_versions(statuses: Iterable[WorkerStatus]) -> dict[str, tuple[VersionState, ...]]:
    """Returns the versions of every model, newest first.

    A version whose workers disagree has the state that is farthest from serving, and names that
    worker.
    """
    found: dict[str, dict[int, list[tuple[int, VersionState]]]] = {}
    for status in statuses:
        for name, states in status.models.items():
            for state in states:
                found.setdefault(name, {}).setdefault(state.version, []).append((status.pid, state))
    return {
        name: tuple(_merged(versions[number]) for number in sorted(versions, reverse=True))
        for name, versions in sorted(found.items())
    }


def _merged(states: Sequence[tuple[int, VersionState]]) -> VersionState:
    pid, worst = min(states, key=lambda each: _BY_DISTANCE.index(each[1].state))
    if all(state.state == worst.state for _, state in states):
        return worst
    return replace(worst, problem=f"worker {pid}: {worst.problem or worst.state}")
