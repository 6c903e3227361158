"""Whatever comes, goes, breaks and is requested: no request holds a version that was closed, none
is left open.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from service.config import ServiceSettings
from service.errors import ServiceError
from service.versions.desired_state import DesiredModel, RolledBack
from service.versions.lifecycle import Lease, VersionManager
from service.versions.policy import arrange, rank_versions
from service.versions.version import ModelVersion

VERSIONS = st.integers(1, 5)
SETS = st.sets(VERSIONS).map(tuple)
MODEL = "m"
SETTINGS = ServiceSettings(root=Path.cwd())


@dataclass(eq=False)
class Opened:
    """What a manager looks at of a version, and whether it was closed."""

    version: int
    model: str = MODEL
    memory_bytes: int = 0
    closed: int = 0

    def close(self) -> None:
        self.closed += 1


class Managing(RuleBasedStateMachine):
    """A model whose versions are loaded, wanted, found damaged, leased and released in
    any order.
    """

    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.manager = VersionManager()
        self.wanted = DesiredModel()
        self.settings = SETTINGS
        self.opened: list[Opened] = []
        self.held_leases: list[tuple[Lease, Opened]] = []
        self.known: set[int] = set()
        self.failed: set[int] = set()

    def arrange(self) -> None:
        loaded, before = self.manager.arranged(MODEL)
        self.manager.arrange(
            MODEL, arrange(self.wanted, self.settings, self.known, loaded, self.failed, before)
        )

    @rule(version=VERSIONS)
    def load(self, version: int) -> None:
        self.known.add(version)
        self.failed.discard(version)
        self.opened.append(Opened(version))
        self.manager.add(cast(ModelVersion, self.opened[-1]))
        self.arrange()

    @rule(
        pinned=SETS,
        unloaded=SETS,
        labels=st.dictionaries(st.sampled_from(["a", "b"]), VERSIONS),
        back=st.none() | st.builds(RolledBack, to=VERSIONS, above=VERSIONS),
        stopped=st.booleans(),
    )
    def want(
        self,
        pinned: tuple[int, ...],
        unloaded: tuple[int, ...],
        labels: dict[str, int],
        back: RolledBack | None,
        stopped: bool,
    ) -> None:
        self.wanted = DesiredModel(
            pinned=pinned,
            unloaded=unloaded,
            labels=labels,
            rolled_back=back,
            stopped=stopped and not pinned,
        )
        self.arrange()

    @rule(latest=st.integers(1, 3), keep=st.booleans())
    def choose(self, latest: int, keep: bool) -> None:
        self.settings = SETTINGS.model_copy(
            update={"latest_versions": latest, "keep_previous": keep}
        )
        self.arrange()

    @rule(version=VERSIONS)
    def remove(self, version: int) -> None:
        self.known.discard(version)
        self.arrange()

    def current(self) -> ModelVersion | None:
        try:
            with self.manager.acquire(MODEL) as version:
                return version
        except ServiceError:
            return None

    @rule()
    def damage(self) -> None:
        current = self.current()
        if current is None:
            return
        replacements = self.manager.arranged(MODEL)[0] - {current.version}
        self.failed.add(current.version)
        assert self.manager.damage(current, "a block differs")
        assert (self.current() is not None) == bool(replacements), (
            "what is loaded replaces it at the same moment"
        )
        self.arrange()

    @rule(target=leases, version=st.none() | VERSIONS, label=st.sampled_from(["", "", "a", "b"]))
    def lease(self, version: int | None, label: str) -> Lease | None:
        try:
            lease = self.manager.acquire(MODEL, version, label)
        except ServiceError:
            return None
        opened = cast(Opened, lease.version)
        assert version in {None, opened.version}
        if version is None and not label:
            assert lease.version is self.current()
        self.held_leases.append((lease, opened))
        return lease

    @rule(lease=consumes(leases))
    def release(self, lease: Lease | None) -> None:
        if lease is not None:
            lease.release()
            lease.release()
            self.held_leases = [held for held in self.held_leases if held[0] is not lease]

    @invariant()
    def no_leased_or_loaded_version_is_closed_and_all_others_are_closed_once(self) -> None:
        self.manager.wait_closed()
        loaded = {id(version) for version in self.manager.loaded()}
        leased = {id(version) for _, version in self.held_leases}
        for opened in self.opened:
            assert opened.closed == (id(opened) not in loaded | leased)

    @invariant()
    def the_best_loaded_version_is_current(self) -> None:
        loaded, arranged = self.manager.arranged(MODEL)
        best = [
            version
            for version in rank_versions(self.wanted, self.known | loaded)
            if version in loaded
        ]
        if best:
            assert arranged.current == best[0]
        current = self.current()
        assert (None if current is None else current.version) == arranged.current


Managing.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
test_version_manager_any_history_keeps_its_laws = Managing.TestCase
