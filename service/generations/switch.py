"""Which version answers: one current pointer per model, leases that pin it, the old one closed after its last lease.

"available" is told after it is true, "retiring" before the version goes. Listeners never run under the lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from service import logs
from service.errors import DataLoss, InvalidArgument, NotFound, NotReady
from service.generations.generation import Generation

log = logs.logger(__name__)

_NAMES_TOLD_MAX = 10


@dataclass(frozen=True)
class VersionStatus:
    """One version under the root. state: loading, available, retiring or refused (then `problem` says why)."""

    version: int
    state: str
    problem: str = ""


@dataclass(eq=False)
class _Holding:
    """A generation and how many requests pin it."""

    generation: Generation
    leases: int = 0
    retired: bool = False


@dataclass
class _Shelf:
    """One model: what answers, what is on its way in or out, and what was refused."""

    current: _Holding | None = None
    damage: str = ""
    """Why nothing answers although a version was served: its bytes do not match their digests."""
    leaving: list[_Holding] = field(default_factory=list)
    loading: set[int] = field(default_factory=set)
    refused: dict[int, str] = field(default_factory=dict)

    def empty(self) -> bool:
        return not (self.current or self.damage or self.leaving or self.loading or self.refused)


class Lease:
    """Pins a generation until it is released; releasing twice is the same as once."""

    __slots__ = ("_holding", "_switch", "generation")

    def __init__(self, switch: Switch, holding: _Holding) -> None:
        self._switch = switch
        self._holding: _Holding | None = holding
        self.generation = holding.generation

    @property
    def retired(self) -> bool:
        """Whether the generation answers no new requests: the last release closes it."""
        return self._holding is not None and self._holding.retired

    def release(self) -> None:
        """Lets the generation go."""
        holding, self._holding = self._holding, None
        if holding is not None:
            self._switch._release(holding)

    def __enter__(self) -> Generation:
        return self.generation

    def __exit__(self, *_: object) -> None:
        self.release()


class Switch:
    """The current generation of every model. Safe to call from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shelves: dict[str, _Shelf] = {}
        self._listeners: list[Callable[[], None]] = []
        self._settled = False

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Calls `listener` after every change, in the thread that made it."""
        self._listeners.append(listener)

    @property
    def settled(self) -> bool:
        """Whether the root was looked through once since the start."""
        return self._settled

    def settle(self) -> None:
        """Tells that the first look through the root is over."""
        self._settled = True
        self._tell()

    def available(self) -> set[str]:
        """Returns the models that have a version to answer with."""
        with self._lock:
            return {name for name, shelf in self._shelves.items() if shelf.current}

    def current(self, model: str) -> Generation | None:
        """Returns the generation that answers for a model now, without pinning it."""
        with self._lock:
            shelf = self._shelves.get(model)
            return shelf.current.generation if shelf and shelf.current else None

    def lease(self, model: str, version: int | None) -> Lease:
        """Pins the generation that answers a request.

        Args:
          model: its name; empty: the only model.
          version: None: whichever is current.
        Raises:
          NotReady: nothing is loaded (yet).
          InvalidArgument: no name, and several models.
          NotFound: no such model, or another version of it is served.
          DataLoss: the model's files do not match their digests, and no older version could take over.
        """
        with self._lock:
            name, shelf = self._chosen(model)
            if shelf.current is None:
                if shelf.damage:
                    raise DataLoss(f"model {name!r}: {shelf.damage}")
                if shelf.loading or not shelf.refused:
                    raise NotReady(f"model {name!r} is being loaded")
                raise NotReady(f"model {name!r} has no version that could be loaded; the list of models tells why")
            served = shelf.current.generation.version
            if version is not None and version != served:
                raise NotFound(f"version {version} of model {name!r} is not served; version {served} is")
            shelf.current.leases += 1
            return Lease(self, shelf.current)

    def _chosen(self, model: str) -> tuple[str, _Shelf]:
        """The shelf that is meant; under the lock."""
        if not self._shelves:
            raise NotReady("no model is loaded yet")
        if not self._settled and model not in self._shelves:
            raise NotReady("the models are still being loaded")
        if model in self._shelves:
            return model, self._shelves[model]
        if not model and len(self._shelves) == 1:
            return next(iter(self._shelves.items()))
        names = sorted(self._shelves)
        told = ", ".join(repr(name) for name in names[:_NAMES_TOLD_MAX]) + (
            ", ..." if len(names) > _NAMES_TOLD_MAX else ""
        )
        if not model:
            raise InvalidArgument(f"the model must be named: there are {told}")
        raise NotFound(f"no model {model[:128]!r}; there are {told}")

    def begin(self, model: str, version: int) -> None:
        """Tells that a version is being loaded."""
        with self._lock:
            shelf = self._shelves.setdefault(model, _Shelf())
            shelf.loading.add(version)
            shelf.refused.pop(version, None)
        self._tell()

    def refuse(self, model: str, version: int, problem: str) -> None:
        """Tells that a version cannot be served; what answers now stays."""
        with self._lock:
            shelf = self._shelves.setdefault(model, _Shelf())
            shelf.loading.discard(version)
            shelf.refused[version] = problem
        self._tell()

    def forget(self, model: str, version: int) -> None:
        """Drops a refused version that is gone from the root; the model too if nothing else is left of it."""
        with self._lock:
            shelf = self._shelves.get(model)
            if shelf is not None:
                shelf.refused.pop(version, None)
                if shelf.empty():
                    del self._shelves[model]
        self._tell()

    def put(self, generation: Generation) -> None:
        """Makes a generation the current one of its model; the one before retires when its last lease ends."""
        with self._lock:
            shelf = self._shelves.setdefault(generation.model, _Shelf())
            before, shelf.current = shelf.current, _Holding(generation)
            shelf.damage = ""
            shelf.loading.discard(generation.version)
            shelf.refused.pop(generation.version, None)
            closing = self._retire(shelf, before)
        self._tell()
        self._close(closing)

    def damage(self, generation: Generation, problem: str) -> bool:
        """Takes a generation out of service because its bytes do not match their digests.

        Returns:
          Whether it was still the current one; if not, nothing changed.
        """
        with self._lock:
            shelf = self._shelves.get(generation.model)
            if shelf is None or shelf.current is None or shelf.current.generation is not generation:
                return False
            before, shelf.current = shelf.current, None
            shelf.damage = problem
            shelf.refused[generation.version] = problem
            closing = self._retire(shelf, before)
        self._tell()
        self._close(closing)
        return True

    def close(self) -> None:
        """Retires every generation; each is closed when its last lease ends."""
        with self._lock:
            shelves, self._shelves = self._shelves, {}
            closing = [holding for shelf in shelves.values() if (holding := self._retire(shelf, shelf.current))]
        self._tell()
        for holding in closing:
            self._close(holding)

    def models(self) -> dict[str, tuple[VersionStatus, ...]]:
        """Returns every model's versions, newest first."""
        with self._lock:
            return {name: _statuses(shelf) for name, shelf in sorted(self._shelves.items())}

    @staticmethod
    def _retire(shelf: _Shelf, holding: _Holding | None) -> _Holding | None:
        """Marks a holding as leaving; under the lock. Returns it if it can be closed at once."""
        if holding is None:
            return None
        holding.retired = True
        if holding.leases == 0:
            return holding
        shelf.leaving.append(holding)
        return None

    def _release(self, holding: _Holding) -> None:
        with self._lock:
            holding.leases -= 1
            last = holding.retired and holding.leases == 0
            if last:
                shelf = self._shelves.get(holding.generation.model)
                if shelf is not None and holding in shelf.leaving:
                    shelf.leaving.remove(holding)
        if last:
            self._tell()
            self._close(holding)

    @staticmethod
    def _close(holding: _Holding | None) -> None:
        if holding is not None:
            generation = holding.generation
            generation.close()
            log.info("version_retired", extra=logs.fields(model=generation.model, version=generation.version))

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()


def _statuses(shelf: _Shelf) -> tuple[VersionStatus, ...]:
    states = {version: VersionStatus(version, "refused", problem) for version, problem in shelf.refused.items()}
    for holding in shelf.leaving:
        states.setdefault(holding.generation.version, VersionStatus(holding.generation.version, "retiring"))
    states.update({version: VersionStatus(version, "loading") for version in shelf.loading})
    if shelf.current:
        version = shelf.current.generation.version
        states[version] = VersionStatus(version, "available")
    return tuple(states[version] for version in sorted(states, reverse=True))
