"""Which versions are loaded and which of them serves a request: one current version per model,
others by number or label.

A request holds a lease. A retired version is closed after its last lease, in a background thread.
Listeners are called after each change and never under the lock: "available" is announced once it is
true, "retiring" before a version goes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

from bundle.shown_values import similar_name
from service.errors import (
    DataLoss,
    FieldViolation,
    InvalidArgument,
    NotFound,
    NotReady,
    ServiceError,
    one_of,
)
from service.observability.logging import fields, logger
from service.versions.policy import Arrangement
from service.versions.version import ModelVersion

log = logger(__name__)

State = Literal["loading", "available", "kept", "retiring", "failed"]
_LISTED_MAX = 10
"""Maximum number of names or versions that a message lists."""


@dataclass(frozen=True)
class VersionState:
    """One version under the root.

    Attributes:
      version: The number of the version.
      state: The state. kept: loaded for a rollback; retiring: until its last request ends; failed:
        `problem` says why.
      problem: Why the version, or the copy of it that is under the root now, could not be loaded;
        empty: it could.
      current: Whether the version serves requests that name none.
      labels: The labels of the version, sorted.
      memory_bytes: An upper bound of the memory that the version takes beside its tables in each
        process; 0: it is not loaded.
    """

    version: int
    state: State
    problem: str = ""
    current: bool = False
    labels: tuple[str, ...] = ()
    memory_bytes: int = 0

    @property
    def is_loaded(self) -> bool:
        """Whether requests can get the version."""
        return self.state in {"available", "kept"}


@dataclass(eq=False)
class _Loaded:
    """A loaded version, its leases, and whether it closes after the last of them.

    Attributes:
      version: The version as it was loaded.
      served: The version with the changes of its candidates and contexts so far.
      leases: The number of requests that the version serves now.
      is_retired: Whether it closes after the last of them.
    """

    version: ModelVersion
    served: ModelVersion
    leases: int = 0
    is_retired: bool = False


@dataclass
class _Model:
    """The versions of one model.

    Attributes:
      current: The version that serves requests that name none; None: there is none.
      loaded: The loaded versions that requests can get.
      arranged: The roles of the loaded versions.
      damage: Why there is no current version although one was served; empty: there is one, or
        never was.
      retiring: Versions that requests get no more, until their last request ends.
      unloaded: The versions that are loading or failed. One that is loaded is among them while
        its changed files are loaded, or if they failed.
    """

    current: _Loaded | None = None
    loaded: dict[int, _Loaded] = field(default_factory=dict)
    arranged: Arrangement = field(default_factory=lambda: Arrangement(None))
    damage: str = ""
    retiring: list[_Loaded] = field(default_factory=list)
    unloaded: dict[int, VersionState] = field(default_factory=dict)

    def retire(self, *versions: int) -> None:
        """Marks loaded versions as retired."""
        for version in versions:
            holder = self.loaded.pop(version)
            holder.is_retired = True
            self.retiring.append(holder)

    def find(self, name: str, version: int | None, label: str) -> _Loaded:
        """Returns what serves a request; raises NotFound, NotReady or DataLoss if nothing does."""
        if version is None and not label and self.current is not None:
            return self.current
        if not self.loaded or (version is None and not label):
            raise self._without_current(name)
        version_text = f"version {version} of model {name!r}"
        if label:
            labelled = self.arranged.labels.get(label)
            if labelled is None:
                value = repr(label[:80])
                labels = _list_names(self.arranged.labels)
                message = f"model {name!r} has no label {value}; it has {labels}"
                raise NotFound(message, FieldViolation("label", value, one_of(labels)))
            if version not in {None, labelled}:
                meaning = f"label {label!r} of model {name!r} stands for version {labelled}"
                violation = FieldViolation("version", str(version), str(labelled))
                raise NotFound(f"{meaning}, not for {version}", violation)
            version = labelled
            version_text = (
                f"version {labelled} of model {name!r}, which label {label!r} stands for,"
            )
        if version in self.loaded:
            return self.loaded[version]

        # An operator promised the label: its version may come, and the client may try again. A
        # version that a client names by its number is simply not served.
        if label and version in self.unloaded:
            state = self.unloaded[version].state
            if state == "loading":
                raise NotReady(f"{version_text} is being loaded")
            if state == "failed":
                raise NotReady(f"{version_text} could not be loaded; the list of models says why")
        served = _list_names(self.loaded)
        violation = FieldViolation("version", str(version), f"a served version, {served}")
        raise NotFound(f"{version_text} is not served; served: {served}", violation)

    def _without_current(self, name: str) -> ServiceError:
        states = {version.state for version in self.unloaded.values()}
        if self.damage:
            return DataLoss(f"model {name!r}: {self.damage}")
        if "loading" in states:
            return NotReady(f"model {name!r} is being loaded")
        if "failed" in states:
            return NotReady(
                f"model {name!r} has no version that could be loaded; the list of models says why"
            )
        return NotReady(f"model {name!r} is not loaded")

    def states(self) -> tuple[VersionState, ...]:
        """Returns the state of each version, newest first."""
        # A version of the same number may be retiring, loading and loaded at once: the state that
        # matters most to a client is written last.
        retiring = (holder.version.version for holder in self.retiring)
        states = {version: VersionState(version, "retiring") for version in retiring}
        states |= self.unloaded
        for version, holder in self.loaded.items():
            is_current = holder is self.current
            state: State = "available"
            if version == self.arranged.previous and not is_current:
                state = "kept"
            problem = ""
            if version in self.unloaded:
                problem = self.unloaded[version].problem
            labels = [
                label for label, labelled in self.arranged.labels.items() if labelled == version
            ]
            states[version] = VersionState(
                version,
                state,
                problem,
                is_current,
                tuple(sorted(labels)),
                holder.version.memory_bytes,
            )
        return tuple(states[version] for version in sorted(states, reverse=True))


class Lease:
    """Keeps a version from being closed until it is released; releasing it again does nothing."""

    __slots__ = ("_loaded", "_manager", "version")

    def __init__(self, manager: VersionManager, loaded: _Loaded) -> None:
        self._manager = manager
        self._loaded: _Loaded | None = loaded
        # A request sees one state of the version: changes that arrive meanwhile make new ones.
        self.version = loaded.served

    def release(self) -> None:
        """Gives the version back; cheap in any thread, since a retired version is closed in another
        one.
        """
        loaded = self._loaded
        self._loaded = None
        if loaded is not None:
            self._manager._release(loaded)  # noqa: SLF001 - a lease is the only caller

    def __enter__(self) -> ModelVersion:
        return self.version

    def __exit__(self, *_: object) -> None:
        self.release()


class VersionManager:
    """The loaded versions of every model. Safe to call from any thread.

    Attributes:
      settled: Whether the root was scanned once since the start.
      suspended: Why no request is served whatever is loaded; empty: requests are served.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._models: dict[str, _Model] = {}
        self._listeners: list[Callable[[], None]] = []
        self.settled = False
        self.suspended = ""
        # The event loop releases leases: to unmap gigabytes there would stop it for a while.
        self._closer = ThreadPoolExecutor(1, "rowcast-close")

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Calls `listener` after every change, in the thread that made it."""
        self._listeners.append(listener)

    def settle(self) -> None:
        """Marks the first scan of the root as done."""
        self.settled = True
        self.notify()

    def suspend(self, reason: str) -> None:
        """Serves no new requests from now on, for this reason; empty: serves them again."""
        self.suspended = reason
        self.notify()

    def available(self) -> set[str]:
        """Returns the models that have a current version."""
        with self._lock:
            return {name for name, model in self._models.items() if model.current}

    def missing(self, required: Collection[str]) -> str:
        """Returns which models have no current version, and why; "": all have one."""
        states = self.models()
        reasons = []
        for name in sorted(set(required) - self.available()):
            reason = f"there are {_list_names(states)}{similar_name(name, states)}"
            if name in states:
                reason = "no version of it is wanted"
            for state in states.get(name, ()):
                if state.problem:
                    reason = f"version {state.version}: {state.problem}"
                    break
            reasons.append(f"{name!r} ({reason})")
        if not reasons:
            return ""
        return f"required models are not available: {', '.join(reasons)}"

    def current(self) -> dict[str, ModelVersion]:
        """Returns the version of each model that serves requests without a version, without
        leases.
        """
        with self._lock:
            return {
                name: model.current.version
                for name, model in self._models.items()
                if model.current is not None
            }

    def loaded(self) -> list[ModelVersion]:
        """Returns every version that requests can get, as it was loaded, current ones first,
        without leases.
        """
        with self._lock:
            current: list[ModelVersion] = []
            not_current: list[ModelVersion] = []
            for model in self._models.values():
                for holder in model.loaded.values():
                    if holder is model.current:
                        current.append(holder.version)
                    else:
                        not_current.append(holder.version)
            return current + not_current

    def arranged(self, model: str) -> tuple[frozenset[int], Arrangement]:
        """Returns the loaded versions of a model, and their arrangement."""
        with self._lock:
            versions = self._models.get(model) or _Model()
            return frozenset(versions.loaded), versions.arranged

    def models(self) -> dict[str, tuple[VersionState, ...]]:
        """Returns the states of every model's versions, newest first."""
        with self._lock:
            return {name: model.states() for name, model in sorted(self._models.items())}

    def acquire(self, model: str, version: int | None = None, label: str = "") -> Lease:
        """Leases the version that serves a request.

        Args:
          model: The name of the model; empty: the only model.
          version: The number of the version; None: the one that the label stands for, or the
            current one.
          label: The label of the version; empty: the request has none.

        Raises:
          NotReady: Nothing is loaded (yet), or no requests are accepted.
          InvalidArgument: The request has no name, and there are several models.
          NotFound: There is no such model or label, or the version is not served.
          DataLoss: The files do not match their digests, and no other version could replace them.
        """
        with self._lock:
            if self.suspended:
                raise NotReady(self.suspended)
            name = self._name_of(model)
            loaded = self._models[name].find(name, version, label)
            loaded.leases += 1
            return Lease(self, loaded)

    @contextmanager
    def leased(self, model: str) -> Iterator[list[ModelVersion]]:
        """Yields every loaded version of a model with the changes so far, also while no requests
        are served.
        """
        with self._lock:
            holders = [*(self._models.get(model) or _Model()).loaded.values()]
            for holder in holders:
                holder.leases += 1
            leases = [Lease(self, holder) for holder in holders]
        try:
            yield [lease.version for lease in leases]
        finally:
            for lease in leases:
                lease.release()

    def _name_of(self, model: str) -> str:
        if model in self._models:
            return model
        if not self._models:
            raise NotReady("no model is loaded yet")
        if not self.settled:
            raise NotReady("the models are still being loaded")
        models = _list_names(self._models)
        if not model:
            served = [name for name, versions in self._models.items() if versions.current]
            # A directory whose versions all failed makes no request ambiguous.
            if len(served) == 1 or len(self._models) == 1:
                return next(iter(served or self._models))
            violation = FieldViolation("model", "empty", f"one of {models}")
            raise InvalidArgument(f"the request must name a model: there are {models}", violation)
        value = repr(model[:128])
        violation = FieldViolation("model", value, one_of(models))
        raise NotFound(f"no model {value}; there are {models}", violation)

    def mark(self, model: str, version: int, state: State | None, problem: str = "") -> None:
        """Marks a version that is not served; what is loaded stays.

        Args:
          model: The name of the model.
          version: The number of the version.
          state: loading or failed; None: the mark is removed.
          problem: Why it failed.
        """
        with self._changing(model) as versions:
            versions.unloaded.pop(version, None)
            if state is not None:
                versions.unloaded[version] = VersionState(version, state, problem)

    def add(self, loaded: ModelVersion, served: ModelVersion | None = None) -> None:
        """Adds a version, which requests can name from now on. It replaces a loaded one of the same
        number.

        Args:
          loaded: The version as it was loaded.
          served: The version with the changes so far; None: there are none.
        """
        with self._changing(loaded.model) as versions:
            added = _Loaded(loaded, served or loaded)
            before = versions.loaded.get(loaded.version)
            if before is not None:
                versions.retire(loaded.version)
                # Its files changed: no request in between may find the model without a version.
                if before is versions.current:
                    versions.current = added
            versions.loaded[loaded.version] = added
            versions.unloaded.pop(loaded.version, None)

    def change(self, loaded: ModelVersion, served: ModelVersion) -> bool:
        """Serves a version with further changes, from the next request on.

        Args:
          loaded: The version as it was loaded.
          served: The version with the changes.

        Returns:
          Whether the version is loaded; if not, nothing changed.
        """
        with self._lock:
            versions = self._models.get(loaded.model)
            if versions is None:
                return False
            # Another load of the same version may have replaced it meanwhile.
            holder = versions.loaded.get(loaded.version)
            if holder is None or holder.version is not loaded:
                return False
            holder.served = served
            return True

    def arrange(self, model: str, arranged: Arrangement) -> None:
        """Arranges the loaded versions of a model; those without a role in it are retired."""
        with self._changing(model) as versions:
            versions.arranged = arranged
            versions.current = versions.loaded.get(arranged.current or 0)
            if versions.current is not None:
                versions.damage = ""
            with_roles = {*arranged.loaded, arranged.current, arranged.previous}
            versions.retire(*(versions.loaded.keys() - with_roles))

    def damage(self, loaded: ModelVersion, problem: str) -> bool:
        """Retires a version because its bytes do not match their digests; the kept one replaces it
        at the same moment.

        Returns:
          Whether it was still loaded; if not, nothing changed.
        """
        with self._changing(loaded.model) as versions:
            damaged = versions.loaded.get(loaded.version)
            if damaged is None or damaged.version is not loaded:
                return False
            versions.retire(loaded.version)
            versions.unloaded[loaded.version] = VersionState(loaded.version, "failed", problem)

            # Here and now, not by the next arrangement: no request may get damaged rows meanwhile,
            # nor find the model without a version.
            if damaged is versions.current:
                successor = versions.arranged.previous
                if successor not in versions.loaded:
                    successor = max(versions.loaded, default=None)
                versions.current = versions.loaded.get(successor or 0)
                versions.damage = "" if versions.current else problem
                versions.arranged = replace(versions.arranged, current=successor, previous=None)
            return True

    def close(self) -> None:
        """Retires every version, and waits until those without leases are closed."""
        for model in self.models():
            self.arrange(model, Arrangement(None))
        self.wait_closed()

    def wait_closed(self) -> None:
        """Waits until every retired version whose last lease was released is closed. Not for the
        event loop.
        """
        self._closer.submit(lambda: None).result()

    @contextmanager
    def _changing(self, name: str) -> Iterator[_Model]:
        """Yields a model under the lock; then calls the listeners and closes what has no leases any
        more.
        """
        with self._lock:
            model = self._models.setdefault(name, _Model())
            yield model
            closing = [holder for holder in model.retiring if not holder.leases]
            model.retiring = [holder for holder in model.retiring if holder.leases]
            if not (model.loaded or model.damage or model.retiring or model.unloaded):
                del self._models[name]

        # Not under the lock, which listeners take to read the versions.
        self.notify()
        for holder in closing:
            self._closer.submit(_close, holder.version)

    def _release(self, loaded: _Loaded) -> None:
        with self._lock:
            loaded.leases -= 1
            is_last = loaded.is_retired and not loaded.leases
        if is_last:
            with self._changing(loaded.version.model):
                pass  # closes it

    def notify(self) -> None:
        """Calls the listeners, since something that they look at has changed."""
        for listener in self._listeners:
            listener()


def _close(version: ModelVersion) -> None:
    try:
        version.close()
    except Exception:
        log.exception("close_failed", extra=fields(model=version.model, version=version.version))
    else:
        log.info("version_retired", extra=fields(model=version.model, version=version.version))


def _list_names(names: Iterable[str | int]) -> str:
    """Returns at most ten names or versions for a message."""
    # Versions newest first, names by the alphabet.
    ordered = sorted(names, key=lambda name: -name if isinstance(name, int) else name)
    if not ordered:
        return "none"
    listed = ", ".join(map(repr, ordered[:_LISTED_MAX]))
    if len(ordered) > _LISTED_MAX:
        listed += ", ..."
    return listed
