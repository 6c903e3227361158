"""Which version answers: one current pointer per model, others by number or label, leases that pin them.

A generation is closed after its last lease. "available" is told after it is true, "retiring" before the version goes.
Listeners never run under the lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from service import logs
from service.errors import InvalidArgument, NotFound, NotReady
from service.generations.generation import Generation
from service.generations.policy import Arrangement
from service.generations.shelf import NAMES_TOLD_MAX, Holding, Shelf, VersionState

log = logs.logger(__name__)


class Lease:
    """Pins a generation until it is released; releasing twice is the same as once."""

    __slots__ = ("_holding", "_switch", "generation")

    def __init__(self, switch: Switch, holding: Holding) -> None:
        self._switch = switch
        self._holding: Holding | None = holding
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
        self._shelves: dict[str, Shelf] = {}
        self._listeners: list[Callable[[], None]] = []
        self._settled = False
        self._suspended = ""

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

    @property
    def suspended(self) -> str:
        """Why no call is answered whatever is loaded; empty: calls are."""
        return self._suspended

    def suspend(self, problem: str) -> None:
        """Answers no new calls from now on, for this reason; empty: answers them again."""
        self._suspended = problem
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

    def loaded(self) -> list[Generation]:
        """Returns every generation that requests may be given, those first that answer without being named."""
        with self._lock:
            holdings = [(holding, shelf) for shelf in self._shelves.values() for holding in shelf.loaded.values()]
            holdings.sort(key=lambda each: each[0] is not each[1].current)
            return [holding.generation for holding, _ in holdings]

    def arranged(self, model: str) -> tuple[frozenset[int], Arrangement]:
        """Returns the versions of a model that are loaded, and how they are arranged."""
        with self._lock:
            shelf = self._shelves.get(model)
            return (frozenset(shelf.loaded), shelf.arranged) if shelf else (frozenset(), Arrangement(None))

    def lease(self, model: str, version: int | None = None, label: str = "") -> Lease:
        """Pins the generation that answers a request.

        Args:
          model: its name; empty: the only model.
          version: None: whichever the label stands for, or is current.
          label: empty: none.
        Raises:
          NotReady: nothing is loaded (yet), or no calls are taken.
          InvalidArgument: no name, and several models.
          NotFound: no such model, no such label, or that version is not served.
          DataLoss: the files do not match their digests, and no other version could take over.
        """
        with self._lock:
            if self._suspended:
                raise NotReady(self._suspended)
            name, shelf = self._chosen(model)
            holding = shelf.find(name, version, label)
            holding.leases += 1
            return Lease(self, holding)

    def _chosen(self, model: str) -> tuple[str, Shelf]:
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
        told = ", ".join(repr(name) for name in names[:NAMES_TOLD_MAX]) + (
            ", ..." if len(names) > NAMES_TOLD_MAX else ""
        )
        if not model:
            raise InvalidArgument(f"the model must be named: there are {told}")
        raise NotFound(f"no model {model[:128]!r}; there are {told}")

    def begin(self, model: str, version: int) -> None:
        """Tells that a version is being loaded."""
        with self._lock:
            shelf = self._shelves.setdefault(model, Shelf())
            shelf.loading.add(version)
            shelf.refused.pop(version, None)
        self._tell()

    def refuse(self, model: str, version: int, problem: str) -> None:
        """Tells that a version cannot be served; what answers now stays."""
        with self._lock:
            shelf = self._shelves.setdefault(model, Shelf())
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

    def add(self, generation: Generation) -> None:
        """Puts a generation beside those that are loaded: requests may name it. It replaces one of its number."""
        version = generation.version
        with self._lock:
            shelf = self._shelves.setdefault(generation.model, Shelf())
            before = shelf.loaded.get(version)
            holding = shelf.loaded[version] = Holding(generation)
            if before is not None and before is shelf.current:
                shelf.current = holding
            shelf.loading.discard(version)
            shelf.refused.pop(version, None)
            closing = self._retire(shelf, before)
        self._tell()
        self._close(closing)

    def arrange(self, model: str, wanted: Arrangement) -> None:
        """Has a model as wanted, of what is loaded; what is neither wanted nor kept retires after its last lease."""
        with self._lock:
            shelf = self._shelves.get(model)
            if shelf is None:
                return
            stays = {*wanted.loaded, wanted.current, wanted.previous}
            if wanted == shelf.arranged and shelf.loaded.keys() <= stays:
                return
            shelf.arranged = wanted
            shelf.current = None if wanted.current is None else shelf.loaded.get(wanted.current)
            if shelf.current is not None:
                shelf.damage = ""
            going = [shelf.loaded.pop(version) for version in list(shelf.loaded) if version not in stays]
            closing = [holding for each in going if (holding := self._retire(shelf, each)) is not None]
            if shelf.empty():
                del self._shelves[model]
        self._tell()
        for holding in closing:
            self._close(holding)

    def put(self, generation: Generation) -> None:
        """Makes a generation the only one of its model."""
        self.add(generation)
        self.arrange(generation.model, Arrangement(generation.version, frozenset((generation.version,))))

    def damage(self, generation: Generation, problem: str) -> bool:
        """Takes a generation out of service because its bytes do not match their digests.

        What is kept to go back to takes over in the same moment.

        Returns:
          Whether it was still loaded; if not, nothing changed.
        """
        with self._lock:
            shelf = self._shelves.get(generation.model)
            before = shelf.loaded.get(generation.version) if shelf is not None else None
            if shelf is None or before is None or before.generation is not generation:
                return False
            del shelf.loaded[generation.version]
            shelf.refused[generation.version] = problem
            if before is shelf.current:
                kept = shelf.arranged.previous
                kept = kept if kept in shelf.loaded else max(shelf.loaded, default=None)
                shelf.current = None if kept is None else shelf.loaded[kept]
                shelf.damage = problem if shelf.current is None else ""
                shelf.arranged = replace(shelf.arranged, current=kept, previous=None)
            closing = self._retire(shelf, before)
        self._tell()
        self._close(closing)
        return True

    def close(self) -> None:
        """Retires every generation; each is closed when its last lease ends."""
        with self._lock:
            shelves, self._shelves = self._shelves, {}
            every = [(shelf, holding) for shelf in shelves.values() for holding in shelf.loaded.values()]
            closing = [holding for shelf, each in every if (holding := self._retire(shelf, each))]
        self._tell()
        for holding in closing:
            self._close(holding)

    def models(self) -> dict[str, tuple[VersionState, ...]]:
        """Returns every model's versions, newest first."""
        with self._lock:
            return {name: shelf.statuses() for name, shelf in sorted(self._shelves.items())}

    @staticmethod
    def _retire(shelf: Shelf, holding: Holding | None) -> Holding | None:
        """Marks a holding as leaving; under the lock. Returns it if it can be closed at once."""
        if holding is None:
            return None
        holding.retired = True
        if holding.leases == 0:
            return holding
        shelf.leaving.append(holding)
        return None

    def _release(self, holding: Holding) -> None:
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
    def _close(holding: Holding | None) -> None:
        if holding is not None:
            generation = holding.generation
            generation.close()
            log.info("version_retired", extra=logs.fields(model=generation.model, version=generation.version))

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()
