"""The commands of operators: each edits the desired-state file, which every worker follows, and waits until all do.

What needs no load is in effect when a command returns. The status lists what is not in effect yet as `unmet`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bundle import paths, staging
from service.admin.status import ModelStatus, WorkerStatus, merged_versions, read_statuses
from service.config import ServiceSettings
from service.errors import InvalidArgument, NotFound, NotReady
from service.models import desired_state as edits
from service.models.desired_state import Desired, DesiredModel, LogLevel
from service.models.manager import VersionState
from service.models.policy import named, ranked
from service.models.state_file import NAME, Follower, StateFile
from service.observability.logging import fields, logger
from service.resources import free_bytes

_LOG = logger(__name__)
_FOLLOW_TIMEOUT_S, _FOLLOW_INTERVAL_S = 2.0, 0.01
"""How long a command waits for the workers, which read the desired state ten times a second."""
_MAX_NAMES = 10
"""Names listed in one error message."""

Status = dict[str, Any]


class Commands:
    """The commands on one service. They block, return the status, and may be called from any thread."""

    def __init__(self, settings: ServiceSettings, run_directory: Path) -> None:
        """Takes the directory that the workers write their statuses to."""
        self._settings, self._run_directory = settings, run_directory
        self._state = StateFile(settings.state_file or settings.root / NAME)
        self._follower, self._lock = Follower(self._state), threading.Lock()

    def status(self) -> Status:
        """Returns what is desired, what is served, and what of the desired state is not in effect yet."""
        with self._lock:
            self._follower.refresh()
            desired, problem = self._follower.desired or Desired(), self._follower.problem
        workers = read_statuses(self._run_directory)
        versions = merged_versions(workers)
        known = {name for worker in workers for name, model in worker.models.items() if model.known}
        names = {*versions, *desired.models, *(name for name in known if (self._settings.root / name).exists())}
        processes = [{name: getattr(each, name) for name in ("pid", "revision", "resident_bytes")} for each in workers]
        return {
            "root": str(self._settings.root),
            "processes": processes,
            "revision": desired.revision,
            "state_file": str(self._state.path),
            "state_problem": problem or next((each.state_problem for each in workers if each.state_problem), ""),
            "draining": desired.draining,
            "log_level": desired.log_level or self._settings.log_level,
            "memory": {"resident_bytes": sum(each.resident_bytes for each in workers), "free_bytes": free_bytes()},
            "models": [_model(name, desired.of(name), versions.get(name, ()), workers) for name in sorted(names)],
        }

    def load(self, model: str, version: int | None) -> Status:
        """Loads a version, or (None) serves a model again that was unloaded.

        Raises:
          ServiceError: there is no such version, or the state file cannot be written.
        """
        known, _ = self._find(model, version)

        def edit(desired: DesiredModel) -> DesiredModel:
            loaded = edits.loaded(desired, version, automatic=True)
            automatic = version in self._latest(loaded, known)
            return loaded if automatic else edits.loaded(desired, version, automatic=False)

        return self._edit_model("load", model, edit, version=version)

    def unload(self, model: str, version: int | None) -> Status:
        """Unloads a version, or (None) all of a model.

        Raises:
          ServiceError: there is no such version, it has a label, or the state file cannot be written.
        """
        known, served = self._find(model, version)

        def edit(desired: DesiredModel) -> DesiredModel:
            automatic = version in {served.current, served.previous, *self._latest(desired, known)}
            return edits.unloaded(desired, version, automatic)

        return self._edit_model("unload", model, edit, version=version)

    def pin(self, model: str, versions: Sequence[int]) -> Status:
        """Serves only these versions, the newest of them as the current one.

        Raises:
          ServiceError: there is no such version, or the state file cannot be written.
        """
        self._find(model, *versions)
        return self._edit_model("pin", model, partial(edits.pinned, versions=tuple(versions)), versions=versions)

    def unpin(self, model: str) -> Status:
        """Serves the newest version again, after a pin or a rollback.

        Raises:
          ServiceError: there is no such model, or the state file cannot be written.
        """
        self._find(model)
        return self._edit_model("unpin", model, edits.unpinned)

    def label(self, model: str, name: str, version: int) -> Status:
        """Sets a label on a version, which is loaded for it.

        Raises:
          ServiceError: there is no such version, the label is invalid, or the state file cannot be written.
        """
        self._find(model, version)
        edit = partial(edits.labelled, label=name, version=version)
        return self._edit_model("label", model, edit, label=name, version=version)

    def unlabel(self, model: str, name: str) -> Status:
        """Removes a label.

        Raises:
          ServiceError: there is no such label, or the state file cannot be written.
        """
        self._find(model)
        return self._edit_model("unlabel", model, partial(edits.unlabelled, label=name), label=name)

    def roll_back(self, model: str, version: int | None) -> Status:
        """Makes an older version current until a version arrives that is newer than all known now.

        Args:
          version: None: the one that was current before, or else the next older one.
        Raises:
          ServiceError: there is no older version, or the state file cannot be written.
        """
        known, served = self._find(model, version)
        current = served.current
        if current is None:
            raise NotReady(f"model {model!r} has no current version to roll back from")

        def edit(desired: DesiredModel) -> DesiredModel:
            older = [each for each in known if each < current and each not in desired.unloaded]
            to = version or (served.previous if served.previous in older else max(older, default=None))
            if to is None:
                raise NotFound(f"model {model!r} has no version before {current} to roll back to")
            if to >= current:
                raise InvalidArgument(f"version is {to}; one before {current}, the current one, was expected")
            return edits.rolled_back(desired, to, max(known))

        return self._edit_model("rollback", model, edit, version=version)

    def drain(self, draining: bool) -> Status:
        """Rejects calls, or accepts them again.

        Raises:
          ServiceError: the state file cannot be written.
        """
        return self._edit("drain" if draining else "undrain", lambda desired: desired.drained(draining))

    def set_log_level(self, level: LogLevel | None) -> Status:
        """Sets the least severity that is logged; None: the setting's.

        Raises:
          ServiceError: the state file cannot be written.
        """
        return self._edit("log-level", lambda desired: desired.logged(level), level=level)

    def _edit_model(
        self, command: str, model: str, edit: Callable[[DesiredModel], DesiredModel], **given: Any
    ) -> Status:
        def edit_service(desired: Desired) -> Desired:
            return desired.with_model(model, edit(desired.of(model)))

        return self._edit(command, edit_service, model=model, **given)

    def _edit(self, command: str, edit: Callable[[Desired], Desired], **given: Any) -> Status:
        revision = self._state.update(edit).revision
        end = time.monotonic() + _FOLLOW_TIMEOUT_S
        while any(each.revision < revision for each in read_statuses(self._run_directory)) and time.monotonic() < end:
            time.sleep(_FOLLOW_INTERVAL_S)
        arguments = {name: value for name, value in given.items() if value is not None}
        _LOG.info("command_applied", extra=fields(command=command, revision=revision, **arguments))
        return self.status()

    def _find(self, model: str, *versions: int | None) -> tuple[set[int], ModelStatus]:
        """Returns the versions of a model under the root or loaded, and its status in the worker with the newest one.

        Raises:
          NotFound: there is no such model, or not one of these versions of it.
        """
        workers = read_statuses(self._run_directory)
        reports = [worker.models[model] for worker in workers if model in worker.models]
        try:
            known = set(staging.committed_versions(self._settings.root, model)) if paths.is_name(model) else set()
        except OSError:
            known = set()
        known.update(*(report.loaded for report in reports))
        if not known and not any(report.versions for report in reports):
            names = ", ".join(map(repr, list(merged_versions(workers))[:_MAX_NAMES])) or "none"
            raise NotFound(f"no model {model[:128]!r} is in the root; there are {names}")
        for version in set(versions) - {None, *known}:
            listed = ", ".join(map(str, sorted(known, reverse=True)[:_MAX_NAMES])) or "none"
            raise NotFound(f"version {version} of model {model!r} is not in the root; there are {listed}")
        return known, max(reports, key=lambda report: report.current or 0, default=ModelStatus())

    def _latest(self, desired: DesiredModel, known: set[int]) -> list[int]:
        """Returns the versions that are loaded without being named."""
        return ranked(desired, known)[: self._settings.latest_versions]


def _model(name: str, desired: DesiredModel, states: Sequence[VersionState], workers: Sequence[WorkerStatus]) -> Status:
    return {
        "name": name,
        "current": next((state.version for state in states if state.current), None),
        "wanted": desired.model_dump(mode="json", exclude_defaults=True),
        "unmet": _unmet(desired, states, [worker.models.get(name, ModelStatus()) for worker in workers]),
        "versions": [vars(state) for state in states],
    }


def _unmet(desired: DesiredModel, states: Sequence[VersionState], reports: Sequence[ModelStatus]) -> list[Status]:
    """Returns what is wanted of a model and not in effect in every worker."""
    found = {state.version: state for state in states}
    anywhere = {version for report in reports for version in report.loaded}
    everywhere = {version for version in anywhere if all(version in report.loaded for report in reports)}
    wanted, back = set(named(desired)), desired.rolled_back
    if back is not None and not desired.stopped and all(version <= back.above for version in anywhere):
        wanted.add(back.to)
    order = ranked(desired, anywhere.union(*(report.known for report in reports)))
    wanted.update([version for version in order if version not in found or found[version].state != "failed"][:1])
    unwanted = anywhere if desired.stopped else anywhere & set(desired.unloaded)
    unmet = [(version, "loaded") for version in sorted(wanted - everywhere)]
    unmet += [(version, "unloaded") for version in sorted(unwanted)]
    current = {report.current for report in reports}
    if not unmet and len(current) > 1:
        unmet = [(version, "current") for version in order if version in current][:1]
    entries = []
    for version, what in unmet:
        state = found.get(version)
        if state is None or (what == "loaded" and state.state in {"available", "kept"}):  # not in every worker
            entries.append({"version": version, "wanted": what, "state": "missing", "problem": ""})
        else:
            entries.append({"version": version, "wanted": what, "state": state.state, "problem": state.problem})
    return entries
