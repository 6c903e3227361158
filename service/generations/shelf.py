"""One model in a switch: which of its generations are loaded, which answers, and what is told of each version.

Plain values without a lock: the switch has it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from service.errors import DataLoss, NotFound, NotReady, ServiceError
from service.generations.generation import Generation
from service.generations.policy import Arrangement

NAMES_TOLD_MAX = 10


@dataclass(frozen=True)
class VersionState:
    """One version under the root.

    Attributes:
      state: loading; available; kept (to go back to); retiring; refused (then `problem` says why).
      current: requests that name no version are answered by it.
      labels: that stand for it.
      memory_bytes: what it may take beside its tables, at most, in each process; 0: it is not loaded.
    """

    version: int
    state: str
    problem: str = ""
    current: bool = False
    labels: tuple[str, ...] = ()
    memory_bytes: int = 0


@dataclass(eq=False)
class Holding:
    """A generation and how many requests pin it."""

    generation: Generation
    leases: int = 0
    retired: bool = False


@dataclass
class Shelf:
    """One model: what answers, what is on its way in or out, and what was refused."""

    current: Holding | None = None
    loaded: dict[int, Holding] = field(default_factory=dict)
    arranged: Arrangement = field(default_factory=lambda: Arrangement(None))
    damage: str = ""
    """Why nothing answers although a version was served: its bytes do not match their digests."""
    leaving: list[Holding] = field(default_factory=list)
    loading: set[int] = field(default_factory=set)
    refused: dict[int, str] = field(default_factory=dict)

    def empty(self) -> bool:
        """Whether nothing is left to be told of the model."""
        return not (self.loaded or self.damage or self.leaving or self.loading or self.refused)

    def find(self, model: str, version: int | None, label: str) -> Holding:
        """Returns what answers a request.

        Args:
          model: for what is told.
          version: None: whichever the label stands for, or is current.
          label: empty: none.
        Raises:
          NotFound, NotReady, DataLoss: nothing does.
        """
        if version is None and not label and self.current is not None:
            return self.current
        if not self.loaded or (version is None and not label):
            raise self._nothing_answers(model)
        what = f"version {version} of model {model!r}"
        if label:
            labelled = self.arranged.labels.get(label)
            if labelled is None:
                told = ", ".join(repr(each) for each in sorted(self.arranged.labels)[:NAMES_TOLD_MAX]) or "none"
                raise NotFound(f"model {model!r} has no label {label[:80]!r}; it has {told}")
            if version not in {None, labelled}:
                raise NotFound(f"label {label!r} of model {model!r} stands for version {labelled}, not for {version}")
            version, what = labelled, f"version {labelled} of model {model!r}, which label {label!r} stands for,"
        if version in self.loaded:
            return self.loaded[version]
        if label and version in self.loading:
            raise NotReady(f"{what} is being loaded")
        if label and version in self.refused:
            raise NotReady(f"{what} could not be loaded; the list of models tells why")
        versions = sorted(self.loaded, reverse=True)[:NAMES_TOLD_MAX]
        told = f"versions {', '.join(map(str, versions))} are" if len(versions) > 1 else f"version {versions[0]} is"
        raise NotFound(f"{what} is not served; {told}")

    def _nothing_answers(self, model: str) -> ServiceError:
        """Why there is no current version."""
        if self.damage:
            return DataLoss(f"model {model!r}: {self.damage}")
        if self.loading:
            return NotReady(f"model {model!r} is being loaded")
        if self.refused:
            return NotReady(f"model {model!r} has no version that could be loaded; the list of models tells why")
        return NotReady(f"model {model!r} is not loaded")

    def statuses(self) -> tuple[VersionState, ...]:
        """Returns what is told of each version, the newest first."""
        states = {version: VersionState(version, "refused", problem) for version, problem in self.refused.items()}
        for holding in self.leaving:
            states.setdefault(holding.generation.version, VersionState(holding.generation.version, "retiring"))
        states.update({version: VersionState(version, "loading") for version in self.loading})
        for version, holding in self.loaded.items():
            current = holding is self.current
            state = "kept" if version == self.arranged.previous and not current else "available"
            labels = tuple(sorted(label for label, labelled in self.arranged.labels.items() if labelled == version))
            problem = self.refused.get(version, "")
            memory_bytes = holding.generation.memory_bytes
            states[version] = VersionState(version, state, problem, current, labels, memory_bytes)
        return tuple(states[version] for version in sorted(states, reverse=True))
