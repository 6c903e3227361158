"""Which versions are loaded and which is current, for every desired state and whatever exists."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.models.desired_state import DesiredModel, RolledBack
from service.models.policy import Arrangement, Policy, arrangement, ranked

NOTHING = DesiredModel()


@pytest.mark.parametrize(
    ("wanted", "known", "expected"),
    [
        (NOTHING, {1, 3, 2}, [3, 2, 1]),
        (DesiredModel(unloaded=(3,)), {1, 2, 3}, [2, 1]),
        (DesiredModel(pinned=(1, 2)), {1, 2, 3}, [2, 1]),
        (DesiredModel(pinned=(9,)), {1, 2, 3}, []),
        (DesiredModel(stopped=True), {1, 2, 3}, []),
        (DesiredModel(rolled_back=RolledBack(to=2, above=5)), {1, 2, 3, 4, 5}, [2, 1]),
        (DesiredModel(rolled_back=RolledBack(to=2, above=5)), {1, 2, 3, 4, 5, 6, 7}, [7, 6, 2, 1]),
    ],
)
def test_ranked_returns_the_best_first(wanted: DesiredModel, known: set[int], expected: list[int]) -> None:
    assert ranked(wanted, known) == expected


def arrange(
    wanted: DesiredModel,
    known: set[int],
    loaded: set[int],
    before: Arrangement,
    policy: Policy | None = None,
    failed: frozenset[int] = frozenset(),
) -> Arrangement:
    return arrangement(wanted, policy or Policy(), known, loaded, failed, before)


def test_arrangement_newer_version_is_current_and_the_one_before_is_kept() -> None:
    before = Arrangement(2, frozenset({2}), 1)
    assert arrange(NOTHING, {1, 2, 3}, {1, 2, 3}, before) == Arrangement(3, frozenset({3}), 2)
    assert arrange(NOTHING, {1, 2, 3}, {1, 2, 3}, before, Policy(keep_previous=False)).previous is None
    assert arrange(NOTHING, {1, 3}, {1, 2, 3}, before).previous is None, "it is gone from the root"


def test_arrangement_rollback_swaps_current_and_previous() -> None:
    back = DesiredModel(rolled_back=RolledBack(to=1, above=2))
    after = arrange(back, {1, 2}, {1, 2}, Arrangement(2, frozenset({2}), 1))
    assert after == Arrangement(1, frozenset({1}), 2)
    assert arrange(NOTHING, {1, 2}, {1, 2}, after) == Arrangement(2, frozenset({2}), 1)


def test_arrangement_current_stays_until_the_pinned_version_is_loaded() -> None:
    pinned = DesiredModel(pinned=(1,))
    before = Arrangement(2, frozenset({2}))
    assert arrange(pinned, {1, 2}, {2}, before).current == 2
    assert arrange(pinned, {1, 2}, {1, 2}, before).current == 1


def test_arrangement_unloaded_version_stays_only_while_another_will_come() -> None:
    out = DesiredModel(unloaded=(2,))
    before = Arrangement(2, frozenset({2}))
    assert arrange(out, {1, 2}, {2}, before).current == 2
    assert arrange(out, {1, 2}, {1, 2}, before) == Arrangement(1, frozenset({1}))
    assert arrange(out, {1, 2}, {2}, before, failed=frozenset({1})).current is None
    assert arrange(out, {2}, {2}, before).current is None


def test_arrangement_label_stays_until_its_new_version_is_loaded() -> None:
    wanted = DesiredModel(labels={"canary": 3})
    before = Arrangement(2, frozenset({1, 2}), None, {"canary": 1})
    after = arrange(wanted, {1, 2, 3}, {1, 2}, before, Policy(keep_previous=False))
    assert after.labels == {"canary": 1}
    assert after.loaded == {1, 2}
    assert arrange(wanted, {1, 2, 3}, {1, 2, 3}, after).labels == {"canary": 3}


VERSIONS = st.sets(st.integers(1, 6))
DESIRED = st.builds(
    DesiredModel,
    stopped=st.booleans(),
    pinned=VERSIONS.map(tuple),
    rolled_back=st.none() | st.builds(RolledBack, to=st.integers(1, 6), above=st.integers(1, 6)),
    loaded=VERSIONS.map(tuple),
    unloaded=VERSIONS.map(tuple),
    labels=st.dictionaries(st.sampled_from(["a", "b"]), st.integers(1, 6)),
)


@given(
    st.lists(DESIRED, min_size=1, max_size=6),
    VERSIONS,
    st.lists(VERSIONS, min_size=6, max_size=6),
    st.integers(1, 3),
    st.booleans(),
)
def test_arrangement_any_desired_state_uses_loaded_versions_and_keeps_no_more_than_needed(
    states: list[DesiredModel], known: set[int], loads: list[set[int]], latest: int, keep: bool
) -> None:
    policy, before, loaded = Policy(latest, keep), Arrangement(None), set[int]()
    for wanted, arrived in zip(states, loads, strict=False):
        loaded |= arrived & known
        served = before.current is not None
        before = arrange(wanted, known, loaded, before, policy)
        assert {*before.loaded, before.current, before.previous} - {None} <= loaded
        assert before.current is None or before.current in before.loaded
        assert before.previous not in before.loaded
        assert wanted.labels.keys() == before.labels.keys() or wanted.stopped
        if wanted.stopped:
            assert before == Arrangement(None)
        elif best := [version for version in ranked(wanted, known) if version in loaded]:
            assert before.current == best[0]
        elif served and set(ranked(wanted, known)) - set(wanted.unloaded):
            assert before.current is not None, "another version will come, until then the old one stays"
        loaded = {*before.loaded, *(() if before.previous is None else (before.previous,))}
