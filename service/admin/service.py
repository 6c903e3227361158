"""The service as operators see it: its status, and commands, which edit the state file that every
worker follows.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from bundle.errors import BundleError
from bundle.format import paths
from bundle.storage import catalog
from service.admin.commands import DenyAdd, ModelCommand, ModelFacts, read_command
from service.admin.report import report
from service.admin.status import WorkerStatus, merge_versions, read_statuses
from service.config import ServiceSettings
from service.coordinator import Coordinator
from service.errors import FieldViolation, NotFound, NotReady, one_of
from service.observability.merged_metrics import MetricsMissing
from service.resources import free_bytes
from service.versions.desired_state import Desired, DesiredModel
from service.versions.lifecycle import VersionManager, VersionState
from service.versions.policy import named_versions, rank_versions
from service.versions.state_file import StateFile, StateUnreadable

_FOLLOW_TIMEOUT_S = 2.0
"""Time that a command waits for the workers, which read the desired state ten times per second."""
_FOLLOW_INTERVAL_S = 0.01
"""Pause between two reads of the statuses that workers report."""
_MAX_NAMES = 10
"""Number of names that one error message lists."""

Status = dict[str, Any]


class Applied(NamedTuple):
    """A command that was applied.

    Attributes:
      status: The status after it, with the changes that are not in effect yet as `unmet`, and
        whether the command `changed` anything.
      arguments: The arguments of the command for the log.
    """

    status: Status
    arguments: dict[str, Any]


class Service:
    """One service. The methods block, and may be called from any thread."""

    def __init__(
        self, settings: ServiceSettings, coordinator: Coordinator, versions: VersionManager
    ) -> None:
        """Creates the service.

        Args:
          settings: The settings of the service.
          coordinator: Knows the workers' statuses.
          versions: The loaded versions of this worker, by which ids are checked.
        """
        self._settings = settings
        self._coordinator = coordinator
        self._versions = versions
        self._state = StateFile.of(settings)

    def status(self) -> Status:
        """Returns the desired state, the versions that are served, and the part of the desired
        state that is not in effect yet.
        """
        self._state.refresh()
        desired = self._state.desired or Desired()
        workers = self._workers()
        problems = [self._state.problem, *(worker.state_problem for worker in workers)]
        versions = merge_versions(workers)

        # A model may have versions of which no worker has loaded one, such as a stopped one.
        # Workers remember the directories of models that are gone since.
        names = {*versions, *desired.models}
        for worker in workers:
            for name, root_versions in worker.root_versions.items():
                if root_versions and (self._settings.root / name).exists():
                    names.add(name)

        processes = [
            {
                "pid": worker.pid,
                "revision": worker.revision,
                "resident_bytes": worker.resident_bytes,
            }
            for worker in workers
        ]
        return {
            "root": str(self._settings.root.absolute()),
            "processes": processes,
            "revision": desired.revision,
            "state_file": str(self._state.path),
            "state_problem": next(filter(None, problems), ""),
            "draining": desired.draining,
            "log_level": desired.log_level or self._settings.log_level,
            "memory": {
                "resident_bytes": sum(worker.resident_bytes for worker in workers),
                "free_bytes": free_bytes(),
            },
            "models": [
                _model_status(name, desired.of(name), versions.get(name, ()), workers)
                for name in sorted(names)
            ],
        }

    def topology(self) -> Status:
        """Returns the role of the service and, of a router, what each address holds, as each
        process sees it.
        """
        role = ""
        if self._settings.shard_addresses:
            role = "router"
        elif self._settings.shard is not None:
            role = "shard"
        workers = self._workers()
        return {
            "role": role,
            "shard": str(self._settings.shard or ""),
            "processes": [{"pid": worker.pid, "shards": worker.shards} for worker in workers],
        }

    def report(self) -> Status:
        """Returns what an issue about this service needs, without secrets."""
        metrics = b""
        with contextlib.suppress(MetricsMissing):
            metrics = self._coordinator.metrics()
        return report(self._settings, self.status(), self._workers(), metrics)

    def apply(self, name: str, body: bytes, model: str = "", deadline: float = math.inf) -> Applied:
        """Applies a command. A change that needs no load is in effect when this returns, unless
        `is_followed` is false for the returned status.

        Args:
          name: The name of the command.
          body: The arguments of the command as JSON; empty: none.
          model: The model that the command is for; empty: it is for the service.
          deadline: The time until which the state file and the workers are waited for, on the clock
            of `time.monotonic()`.

        Raises:
          ServiceError: The arguments are invalid, there is no such version, or the state file
            cannot be written by the deadline; nothing was changed.
        """
        command = read_command(name, body, self._settings)
        arguments = command.model_dump(exclude_none=True)
        before = Desired()

        # Called under the lock of the state file: two commands at once are applied one after the
        # other, and neither overwrites what the other one changed.
        def edit(desired: Desired) -> Desired:
            nonlocal before
            before = desired
            if isinstance(command, ModelCommand):
                return desired.with_model(model, command.edit(desired.of(model), facts))
            return command.edit(desired)

        if isinstance(command, ModelCommand):
            requested_versions = {arguments.get("version"), *arguments.get("versions", ())}
            facts = self._facts_of(model, requested_versions - {None})
        if isinstance(command, DenyAdd):
            command.check(self._id_dtypes(model, facts.existing))
        after = self._state.update(edit, deadline)

        # A worker that is busy with something else may follow later; the status then says so.
        end = min(time.monotonic() + _FOLLOW_TIMEOUT_S, deadline)
        while time.monotonic() < end:
            if all(worker.revision >= after.revision for worker in self._workers()):
                break
            time.sleep(_FOLLOW_INTERVAL_S)

        # A deny list has up to 100,000 ids, too many for a line of the log.
        if "ids" in arguments:
            arguments["ids"] = len(arguments["ids"])
        status = self.status() | {"changed": after != before}
        if isinstance(command, DenyAdd):
            status["in_no_corpus"] = self._in_no_corpus(model, command.texts)
        return Applied(status, {"revision": after.revision, **arguments})

    def denied(self, model: str) -> Status:
        """Returns the deny list of a model, and those of its ids that are `in_no_corpus`.

        Raises:
          NotFound: There is no such model.
          NotReady: The state file cannot be read.
        """
        try:
            desired = self._state.read()
        except StateUnreadable as problem:
            raise NotReady(str(problem)) from problem
        ids = desired.of(model).denied
        if not ids:
            # An empty list of a model that does not exist would hide a typing mistake.
            self._facts_of(model, set())
        return {
            "model": model,
            "revision": desired.revision,
            "ids": ids,
            "in_no_corpus": self._in_no_corpus(model, ids),
        }

    def _id_dtypes(self, model: str, versions: Iterable[int]) -> set[str]:
        """Returns the dtypes of the ids of the corpora of a model, in all versions that can be
        read: a deny list holds for each of them.
        """
        with self._versions.leased(model) as loaded:
            manifests = [version.manifest for version in loaded]
        for number in {*versions} - {manifest.version for manifest in manifests}:
            with contextlib.suppress(BundleError, OSError):
                directory = self._settings.root / model / str(number)
                manifests.append(catalog.read_manifest(directory))
        return {entry.id_dtype for manifest in manifests for entry in manifest.corpora.values()}

    def _in_no_corpus(self, model: str, ids: Sequence[str]) -> Sequence[str]:
        """Returns those of some ids that no corpus of any loaded version has."""
        with self._versions.leased(model) as loaded:
            for version in loaded:
                ids = version.without_known(ids)
        return ids

    def _workers(self) -> list[WorkerStatus]:
        return read_statuses(self._coordinator.statuses())

    def _facts_of(self, model: str, versions: set[int]) -> ModelFacts:
        """Returns the facts about a model that its commands depend on.

        Raises:
          NotFound: There is no such model, or it lacks one of these versions.
        """
        workers = self._workers()
        existing = set[int]()
        # The name comes from a URL: checked before it becomes part of a path.
        if paths.is_name(model):
            # A root that cannot be read now leaves the versions that are loaded.
            with contextlib.suppress(OSError):
                existing.update(catalog.committed_versions(self._settings.root, model))
        existing.update(*(worker.loaded(model) for worker in workers))

        if not existing and not any(worker.models.get(model) for worker in workers):
            names = ", ".join(map(repr, list(merge_versions(workers))[:_MAX_NAMES])) or "none"
            name = repr(model[:128])
            violation = FieldViolation("model", name, one_of(names))
            raise NotFound(f"no model {name} is in the root; there are {names}", violation)
        for version in versions - existing:
            listed = ", ".join(map(str, sorted(existing, reverse=True)[:_MAX_NAMES])) or "none"
            violation = FieldViolation("version", str(version), one_of(listed))
            message = f"version {version} of model {model!r} is not in the root; there are {listed}"
            raise NotFound(message, violation)

        # Workers switch together, but not in one instant: during a switch, the worker that is ahead
        # says which version is current.
        reports = [worker.models.get(model, ()) for worker in workers]
        states = max(reports, key=_current, default=())
        previous = next((state.version for state in states if state.state == "kept"), None)
        return ModelFacts(
            existing=frozenset(existing),
            current=_current(states) or None,
            previous=previous,
            latest_versions=self._settings.latest_versions,
        )


def is_followed(status: Status) -> bool:
    """Returns whether every worker follows the desired state that a status shows."""
    return all(worker["revision"] >= status["revision"] for worker in status["processes"])


def _current(states: Sequence[VersionState]) -> int:
    return next((state.version for state in states if state.current), 0)


def _model_status(
    name: str,
    desired: DesiredModel,
    states: Sequence[VersionState],
    workers: Sequence[WorkerStatus],
) -> Status:
    """Returns the status of one model.

    Args:
      name: The name of the model.
      desired: The desired state of the model.
      states: The states of its versions, merged over all workers.
      workers: The statuses of the workers.
    """
    existing = set[int]()
    for worker in workers:
        existing.update(worker.root_versions.get(name, ()), worker.loaded(name))

    # Without workers, nothing is loaded: all that is desired is unmet.
    reports = [worker.models.get(name, ()) for worker in workers] or [()]
    unmet = {}
    for worker_states in reports:
        for entry in _unmet(desired, existing, worker_states):
            unmet[entry["version"], entry["wanted"]] = entry

    # `GET .../deny` lists the ids, of which there may be 100,000.
    wanted = desired.model_dump(mode="json", exclude_defaults=True, exclude={"denied"})
    if desired.denied:
        wanted["denied"] = len(desired.denied)
    return {
        "name": name,
        "current": _current(states) or None,
        "wanted": wanted,
        "unmet": [unmet[key] for key in sorted(unmet)],
        "versions": [vars(state) for state in states],
    }


def _unmet(
    desired: DesiredModel, existing: set[int], states: Sequence[VersionState]
) -> list[Status]:
    """Returns what is wanted of a model and not in effect in one worker.

    Args:
      desired: The desired state of the model.
      existing: The versions under the root, and the loaded ones.
      states: The states of the versions in the worker.
    """
    state_by_version = {state.version: state for state in states}
    failed = {state.version for state in states if state.state == "failed"}
    loaded = {state.version for state in states if state.is_loaded}

    wanted = set(named_versions(desired))
    rollback = desired.rolled_back
    if rollback is not None and not desired.stopped and max(existing, default=0) <= rollback.above:
        wanted.add(rollback.to)
    # The newest version that may be current. A failed one is reported as failed, not as unmet: the
    # next one serves instead.
    usable = [version for version in rank_versions(desired, existing) if version not in failed]
    wanted.update(usable[:1])

    unwanted = loaded
    if not desired.stopped:
        unwanted = loaded & set(desired.unloaded)
    unmet = [(version, "loaded") for version in wanted - loaded]
    unmet += [(version, "unloaded") for version in unwanted]

    entries = []
    for version, expected_state in unmet:
        entry = {"version": version, "wanted": expected_state, "state": "missing", "problem": ""}
        state = state_by_version.get(version)
        if state is not None:
            entry["state"] = state.state
            entry["problem"] = state.problem
        entries.append(entry)
    return entries
