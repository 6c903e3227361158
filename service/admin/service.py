"""The service as operators see it: its status, and commands, which edit the state file that every
worker follows.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from bundle.format import paths
from bundle.storage import catalog
from service.admin.commands import COMMANDS, ModelCommand, ModelFacts
from service.admin.report import report
from service.admin.status import WorkerStatus, merged_versions, read_statuses
from service.config import ServiceSettings
from service.coordinator import Coordinator
from service.errors import FieldViolation, NotFound, NotReady
from service.observability.logging import fields, logger
from service.resources import free_bytes
from service.versions.desired_state import Desired, DesiredModel, invalid
from service.versions.lifecycle import VersionState
from service.versions.policy import named, ranked
from service.versions.state_file import StateFile, StateUnreadable

_LOG = logger(__name__)
_FOLLOW_TIMEOUT_S = 2.0
"""How long a command waits for the workers, which read the desired state ten times per second."""
_FOLLOW_INTERVAL_S = 0.01
"""Pause between two looks at the workers' statuses."""
_MAX_NAMES = 10
"""Names listed in one error message."""

Status = dict[str, Any]


class Service:
    """One service. The methods block, and may be called from any thread."""

    def __init__(self, settings: ServiceSettings, coordinator: Coordinator) -> None:
        """Creates the service of a coordinator, to which the workers report."""
        self._settings = settings
        self._coordinator = coordinator
        self._state = StateFile.of(settings)

    def status(self) -> Status:
        """Returns what is desired, what is served, and what of the desired state is not in effect
        yet.
        """
        self._state.refresh()
        desired = self._state.desired or Desired()
        workers = self._workers()
        problems = [self._state.problem, *(each.state_problem for each in workers)]
        known = {name for worker in workers for name, versions in worker.known.items() if versions}
        versions = merged_versions(workers)
        names = {
            *versions,
            *desired.models,
            *(name for name in known if (self._settings.root / name).exists()),
        }
        return {
            "root": str(self._settings.root),
            "processes": [
                {name: vars(each)[name] for name in ("pid", "revision", "resident_bytes")}
                for each in workers
            ],
            "revision": desired.revision,
            "state_file": str(self._state.path),
            "state_problem": next(filter(None, problems), ""),
            "draining": desired.draining,
            "log_level": desired.log_level or self._settings.log_level,
            "memory": {
                "resident_bytes": sum(each.resident_bytes for each in workers),
                "free_bytes": free_bytes(),
            },
            "models": [
                _model(name, desired.of(name), versions.get(name, ()), workers)
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
            "processes": [{"pid": each.pid, "shards": each.shards} for each in workers],
        }

    def report(self) -> Status:
        """Returns what an issue about this service needs, without secrets."""
        return report(self._settings, self.status(), self._workers())

    def apply(self, name: str, body: bytes, model: str = "") -> Status:
        """Applies a command. What needs no load is in effect when this returns, unless
        `is_followed` is false of it.

        Args:
          name: of the command.
          body: its arguments as JSON; empty: none.
          model: that the command is for; empty: the service.
        Returns:
          The status after it, what is not in effect yet as `unmet`, and whether the command
          `changed` anything.
        Raises:
          ServiceError: the arguments are invalid, there is no such version, or the state file
            cannot be written.
        """
        try:
            command = COMMANDS[name].model_validate_json(body or b"{}")
        except ValidationError as problem:
            raise invalid(problem) from None
        given = command.model_dump(exclude_none=True)
        before = Desired()

        def edit(desired: Desired) -> Desired:
            nonlocal before
            before = desired
            if isinstance(command, ModelCommand):
                return desired.with_model(model, command.edit(desired.of(model), facts))
            return command.edit(desired)

        if isinstance(command, ModelCommand):
            facts = self._find(model, {given.get("version"), *given.get("versions", ())} - {None})
            given["model"] = model
        after = self._state.update(edit)
        end = time.monotonic() + _FOLLOW_TIMEOUT_S
        while self._is_behind(after.revision) and time.monotonic() < end:
            time.sleep(_FOLLOW_INTERVAL_S)
        if "ids" in given:
            given["ids"] = len(given["ids"])
        _LOG.info("command_applied", extra=fields(command=name, revision=after.revision, **given))
        return self.status() | {"changed": after != before}

    def denied(self, model: str) -> Status:
        """Returns the deny list of a model.

        Raises:
          NotFound: there is no such model.
          NotReady: the state file cannot be read.
        """
        try:
            desired = self._state.read()
        except StateUnreadable as problem:
            raise NotReady(str(problem)) from problem
        if not (ids := desired.of(model).denied):
            self._find(model, set())
        return {"model": model, "revision": desired.revision, "ids": ids}

    def _workers(self) -> list[WorkerStatus]:
        return read_statuses(self._coordinator.statuses())

    def _is_behind(self, revision: int) -> bool:
        return any(each.revision < revision for each in self._workers())

    def _find(self, model: str, versions: set[int]) -> ModelFacts:
        """Returns what is known of a model.

        Raises:
          NotFound: there is no such model, or not one of these versions of it.
        """
        workers = self._workers()
        try:
            known = (
                set(catalog.committed_versions(self._settings.root, model))
                if paths.is_name(model)
                else set()
            )
        except OSError:
            known = set()
        known.update(*(worker.loaded(model) for worker in workers))
        if not known and not any(worker.models.get(model) for worker in workers):
            names = ", ".join(map(repr, list(merged_versions(workers))[:_MAX_NAMES])) or "none"
            name = repr(model[:128])
            violation = FieldViolation("model", name, f"one of {names}")
            raise NotFound(f"no model {name} is in the root; there are {names}", violation)
        for version in versions - known:
            listed = ", ".join(map(str, sorted(known, reverse=True)[:_MAX_NAMES])) or "none"
            violation = FieldViolation("version", str(version), f"one of {listed}")
            message = f"version {version} of model {model!r} is not in the root; there are {listed}"
            raise NotFound(message, violation)
        states = max((worker.models.get(model, ()) for worker in workers), key=_current, default=())
        previous = next((each.version for each in states if each.state == "kept"), None)
        return ModelFacts(
            frozenset(known), _current(states) or None, previous, self._settings.latest_versions
        )


def is_followed(status: Status) -> bool:
    """Returns whether every worker follows the desired state that a status shows."""
    return all(worker["revision"] >= status["revision"] for worker in status["processes"])


def _current(states: Sequence[VersionState]) -> int:
    return next((each.version for each in states if each.current), 0)


def _model(
    name: str,
    desired: DesiredModel,
    states: Sequence[VersionState],
    workers: Sequence[WorkerStatus],
) -> Status:
    known = {
        version
        for worker in workers
        for version in (*worker.known.get(name, ()), *worker.loaded(name))
    }
    reports = [worker.models.get(name, ()) for worker in workers] or [()]
    unmet = {
        (each["version"], each["wanted"]): each
        for report in reports
        for each in _unmet(desired, known, report)
    }
    wanted = desired.model_dump(mode="json", exclude_defaults=True, exclude={"denied"})
    return {
        "name": name,
        "current": _current(states) or None,
        "wanted": wanted | ({"denied": len(desired.denied)} if desired.denied else {}),
        "unmet": [unmet[key] for key in sorted(unmet)],
        "versions": [vars(state) for state in states],
    }


def _unmet(desired: DesiredModel, known: set[int], states: Sequence[VersionState]) -> list[Status]:
    """Returns what is wanted of a model and not in effect in one worker."""
    found = {state.version: state for state in states}
    loaded = {state.version for state in states if state.is_loaded}
    wanted = set(named(desired))
    back = desired.rolled_back
    if back is not None and not desired.stopped and max(known, default=0) <= back.above:
        wanted.add(back.to)
    order = ranked(desired, known)
    wanted.update(
        [version for version in order if version not in found or found[version].state != "failed"][
            :1
        ]
    )
    unmet = [(version, "loaded") for version in wanted - loaded]
    unmet += [
        (version, "unloaded")
        for version in loaded
        if desired.stopped or version in desired.unloaded
    ]
    entries = []
    for version, what in unmet:
        state, problem = (
            (found[version].state, found[version].problem) if version in found else ("missing", "")
        )
        entries.append({"version": version, "wanted": what, "state": state, "problem": problem})
    return entries
