"""Which versions are loaded and which of them serves a request: one current version a model, others
by number or label.

A request holds a lease. A retired version is closed after its last lease, in a background thread.
Listeners are called after each change and never under the lock: "available" is announced once it is
true, "retiring" before a version goes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

from service.errors import (
    DataLoss,
    FieldViolation,
    InvalidArgument,
    NotFound,
    NotReady,
    ServiceError,
)
from service.observability.logging import fields, logger
from service.versions.policy import Arrangement
from service.versions.version import ModelVersion

log = logger(__name__)

State = Literal["loading", "available", "kept", "retiring", "failed"]
_LISTED_MAX = 10


@dataclass(frozen=True)
class VersionState:
    """One version under the root.

    Attributes:
      state: kept: loaded for a rollback; retiring: until its last request ends; failed: `problem`
        says why.
      current: whether it serves requests that name no version.
      memory_bytes: upper bound of what it takes beside its tables in each process; 0: it is not
        loaded.
    """

    version: int
    state: State
    problem: str = ""
    current: bool = False
    labels: tuple[str, ...] = ()
    memory_bytes: int = 0

    @property
    def is_loaded(self) -> bool:
        """Whether requests can get it."""
        return self.state in {"available", "kept"}


@dataclass(eq=False)
class _Loaded:
    """A loaded version, its leases, and whether it closes after the last of them.

    Attributes:
      version: As it was loaded.
      served: The same with the changes of its rows, candidates and contexts so far.
    """

    version: ModelVersion
    served: ModelVersion
    leases: int = 0
    retired: bool = False


@dataclass
class _Model:
    """The versions of one model.

    Attributes:
      unloaded: those that are loading or failed.
      damage: why there is no current version although one was served.
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
            retired = self.loaded.pop(version)
            retired.retired = True
            self.retiring.append(retired)

    def find(self, name: str, version: int | None, label: str) -> _Loaded:
        """Returns what serves a request; raises NotFound, NotReady or DataLoss if nothing does."""
        if version is None and not label and self.current is not None:
            return self.current
        if not self.loaded or (version is None and not label):
            raise self._without_current(name)
        what = f"version {version} of model {name!r}"
        if label:
            labelled = self.arranged.labels.get(label)
            if labelled is None:
                value = repr(label[:80])
                labels = _listed(self.arranged.labels)
                message = f"model {name!r} has no label {value}; it has {labels}"
                raise NotFound(message, FieldViolation("label", value, f"one of {labels}"))
            if version not in {None, labelled}:
                meaning = f"label {label!r} of model {name!r} stands for version {labelled}"
                violation = FieldViolation("version", str(version), str(labelled))
                raise NotFound(f"{meaning}, not for {version}", violation)
            version = labelled
            what = f"version {labelled} of model {name!r}, which label {label!r} stands for,"
        if version in self.loaded:
            return self.loaded[version]
        state = self.unloaded[version].state if label and version in self.unloaded else ""
        if state == "loading":
            raise NotReady(f"{what} is being loaded")
        if state == "failed":
            raise NotReady(f"{what} could not be loaded; the list of models says why")
        served = _listed(self.loaded)
        violation = FieldViolation("version", str(version), f"a served version, {served}")
        raise NotFound(f"{what} is not served; served: {served}", violation)

    def _without_current(self, name: str) -> ServiceError:
        states = {each.state for each in self.unloaded.values()}
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
        numbers = (each.version.version for each in self.retiring)
        states = {number: VersionState(number, "retiring") for number in numbers} | self.unloaded
        for version, each in self.loaded.items():
            current = each is self.current
            state: State = (
                "kept" if version == self.arranged.previous and not current else "available"
            )
            labels = tuple(
                sorted(
                    label for label, labelled in self.arranged.labels.items() if labelled == version
                )
            )
            problem = self.unloaded[version].problem if version in self.unloaded else ""
            states[version] = VersionState(
                version, state, problem, current, labels, each.version.memory_bytes
            )
        return tuple(states[version] for version in sorted(states, reverse=True))


class Lease:
    """Keeps a version from being closed until it is released; releasing it again does nothing."""

    __slots__ = ("_loaded", "_manager", "version")

    def __init__(self, manager: VersionManager, loaded: _Loaded) -> None:
        self._manager = manager
        self._loaded: _Loaded | None = loaded
        self.version = loaded.served

    def release(self) -> None:
        """Gives the version back; cheap in any thread, since a retired version is closed in another
        one.
        """
        loaded = self._loaded
        self._loaded = None
        if loaded is not None:
            self._manager._release(loaded)

    def __enter__(self) -> ModelVersion:
        return self.version

    def __exit__(self, *_: object) -> None:
        self.release()


class VersionManager:
    """The loaded versions of every model. Safe to call from any thread.

    Attributes:
      settled: whether the root was scanned once since the start.
      suspended: why no request is served whatever is loaded; empty: requests are served.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._models: dict[str, _Model] = {}
        self._listeners: list[Callable[[], None]] = []
        self.settled = False
        self.suspended = ""
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
            every = [
                (each, model) for model in self._models.values() for each in model.loaded.values()
            ]
            every.sort(key=lambda pair: pair[0] is not pair[1].current)
            return [each.version for each, _ in every]

    def arranged(self, model: str) -> tuple[frozenset[int], Arrangement]:
        """Returns the loaded versions of a model, and their arrangement."""
        with self._lock:
            found = self._models.get(model) or _Model()
            return frozenset(found.loaded), found.arranged

    def models(self) -> dict[str, tuple[VersionState, ...]]:
        """Returns the states of every model's versions, newest first."""
        with self._lock:
            return {name: model.states() for name, model in sorted(self._models.items())}

    def acquire(self, model: str, version: int | None = None, label: str = "") -> Lease:
        """Leases the version that serves a request.

        Args:
          model: its name; empty: the only model.
          version: None: the one that the label stands for, or the current one.
          label: empty: none.
        Raises:
          NotReady: nothing is loaded (yet), or no requests are accepted.
          InvalidArgument: no name, and several models.
          NotFound: no such model or label, or that version is not served.
          DataLoss: the files do not match their digests, and no other version could replace them.
        """
        with self._lock:
            if self.suspended:
                raise NotReady(self.suspended)
            name = self._name_of(model)
            loaded = self._models[name].find(name, version, label)
            loaded.leases += 1
            return Lease(self, loaded)

    def _name_of(self, model: str) -> str:
        if model in self._models:
            return model
        if not self._models:
            raise NotReady("no model is loaded yet")
        if not self.settled:
            raise NotReady("the models are still being loaded")
        models = _listed(self._models)
        if not model:
            served = [name for name, found in self._models.items() if found.current]
            # A directory whose versions all failed makes no request ambiguous.
            if len(served) == 1 or len(self._models) == 1:
                return next(iter(served or self._models))
            violation = FieldViolation("model", "empty", f"one of {models}")
            raise InvalidArgument(f"the request must name a model: there are {models}", violation)
        value = repr(model[:128])
        violation = FieldViolation("model", value, f"one of {models}")
        raise NotFound(f"no model {value}; there are {models}", violation)

    def mark(self, model: str, version: int, state: State | None, problem: str = "") -> None:
        """Marks a version as loading, or as failed; None: as neither. What is loaded stays."""
        with self._changing(model) as found:
            found.unloaded.pop(version, None)
            if state is not None:
                found.unloaded[version] = VersionState(version, state, problem)

    def add(self, loaded: ModelVersion, served: ModelVersion | None = None) -> None:
        """Adds a version, which requests can name from now on. It replaces a loaded one of the same
        number.

        Args:
          loaded: The version as it was loaded.
          served: The same with the changes so far; None: there are none.
        """
        with self._changing(loaded.model) as found:
            added = _Loaded(loaded, served or loaded)
            before = found.loaded.get(loaded.version)
            if before is not None:
                found.retire(loaded.version)
            if before is not None and before is found.current:
                found.current = added
            found.loaded[loaded.version] = added
            found.unloaded.pop(loaded.version, None)

    def change(self, loaded: ModelVersion, served: ModelVersion) -> bool:
        """Serves a version with further changes, from the next request on.

        Args:
          loaded: The version as it was loaded.
          served: The same with the changes.

        Returns:
          Whether the version is loaded; if not, nothing changed.
        """
        with self._lock:
            model = self._models.get(loaded.model)
            holder = None if model is None else model.loaded.get(loaded.version)
            if holder is None or holder.version is not loaded:
                return False
            holder.served = served
            return True

    def arrange(self, model: str, arranged: Arrangement) -> None:
        """Arranges the loaded versions of a model; those without a role in it are retired."""
        with self._changing(model) as found:
            found.arranged = arranged
            found.current = found.loaded.get(arranged.current or 0)
            if found.current is not None:
                found.damage = ""
            found.retire(
                *(found.loaded.keys() - {*arranged.loaded, arranged.current, arranged.previous})
            )

    def damage(self, loaded: ModelVersion, problem: str) -> bool:
        """Retires a version because its bytes do not match their digests; the kept one replaces it
        at the same moment.

        Returns:
          Whether it was still loaded; if not, nothing changed.
        """
        with self._changing(loaded.model) as found:
            before = found.loaded.get(loaded.version)
            if before is None or before.version is not loaded:
                return False
            found.retire(loaded.version)
            found.unloaded[loaded.version] = VersionState(loaded.version, "failed", problem)
            if before is found.current:
                kept = found.arranged.previous
                kept = kept if kept in found.loaded else max(found.loaded, default=None)
                found.current = found.loaded.get(kept or 0)
                found.damage = "" if found.current else problem
                found.arranged = replace(found.arranged, current=kept, previous=None)
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
            closing = [each for each in model.retiring if not each.leases]
            model.retiring = [each for each in model.retiring if each.leases]
            if not (model.loaded or model.damage or model.retiring or model.unloaded):
                del self._models[name]
        self.notify()
        for each in closing:
            self._closer.submit(_close, each.version)

    def _release(self, loaded: _Loaded) -> None:
        with self._lock:
            loaded.leases -= 1
            last = loaded.retired and not loaded.leases
        if last:
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


def _listed(names: Iterable[str | int]) -> str:
    """Returns at most ten names or versions for a message."""
    found = sorted(names, key=lambda name: -name if isinstance(name, int) else name)
    return (
        ", ".join(map(repr, found[:_LISTED_MAX])) + (", ..." if len(found) > _LISTED_MAX else "")
        or "none"
    )
