"""Whatever comes, goes, breaks and is asked for: no request holds a generation that was closed, none is left open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from service.errors import ServiceError
from service.generations.desired import DesiredModel, RolledBack
from service.generations.generation import Generation
from service.generations.policy import Policy, arrangement, ranked
from service.generations.switch import Lease, Switch

VERSIONS = st.integers(1, 5)
SETS = st.sets(VERSIONS).map(tuple)
MODEL = "m"


@dataclass(eq=False)
class Opened:
    """What a switch looks at of a generation, and whether it was closed."""

    version: int
    model: str = MODEL
    memory_bytes: int = 0
    closed: int = 0

    def close(self) -> None:
        self.closed += 1


class Switching(RuleBasedStateMachine):
    """A model whose versions are loaded, wanted, found damaged, leased and let go of in any order."""

    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.switch, self.wanted, self.policy = Switch(), DesiredModel(), Policy()
        self.opened: list[Opened] = []
        self.held: list[tuple[Lease, Opened]] = []
        self.known: set[int] = set()
        self.refused: set[int] = set()

    def arrange(self) -> None:
        loaded, before = self.switch.arranged(MODEL)
        self.switch.arrange(MODEL, arrangement(self.wanted, self.policy, self.known, loaded, self.refused, before))

    @rule(version=VERSIONS)
    def load(self, version: int) -> None:
        self.known.add(version)
        self.refused.discard(version)
        self.opened.append(Opened(version))
        self.switch.add(cast(Generation, self.opened[-1]))
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
            pinned=pinned, unloaded=unloaded, labels=labels, rolled_back=back, stopped=stopped and not pinned
        )
        self.arrange()

    @rule(latest=st.integers(1, 3), keep=st.booleans())
    def choose(self, latest: int, keep: bool) -> None:
        self.policy = Policy(latest, keep)
        self.arrange()

    @rule(version=VERSIONS)
    def remove(self, version: int) -> None:
        self.known.discard(version)
        self.arrange()

    @rule()
    def damage(self) -> None:
        current = self.switch.current(MODEL)
        if current is None:
            return
        others = self.switch.arranged(MODEL)[0] - {current.version}
        self.refused.add(current.version)
        assert self.switch.damage(current, "a block differs")
        assert (self.switch.current(MODEL) is not None) == bool(others), "what is loaded takes over in the same moment"
        self.arrange()

    @rule(target=leases, version=st.none() | VERSIONS, label=st.sampled_from(["", "", "a", "b"]))
    def lease(self, version: int | None, label: str) -> Lease | None:
        try:
            lease = self.switch.lease(MODEL, version, label)
        except ServiceError:
            return None
        opened = cast(Opened, lease.generation)
        assert version in {None, opened.version}
        if version is None and not label:
            assert lease.generation is self.switch.current(MODEL)
        self.held.append((lease, opened))
        return lease

    @rule(lease=consumes(leases))
    def release(self, lease: Lease | None) -> None:
        if lease is not None:
            lease.release()
            lease.release()
            self.held = [each for each in self.held if each[0] is not lease]

    @invariant()
    def nothing_that_is_held_or_loaded_is_closed_and_all_else_is_closed_once(self) -> None:
        loaded = {id(each) for each in self.switch.loaded()}
        held = {id(opened) for _, opened in self.held}
        for each in self.opened:
            assert each.closed == (id(each) not in loaded | held)

    @invariant()
    def the_best_that_is_loaded_answers(self) -> None:
        loaded, arranged = self.switch.arranged(MODEL)
        best = [version for version in ranked(self.wanted, self.known | loaded) if version in loaded]
        if best:
            assert arranged.current == best[0]
        current = self.switch.current(MODEL)
        assert (None if current is None else current.version) == arranged.current


Switching.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_switch_keeps_its_laws = Switching.TestCase
