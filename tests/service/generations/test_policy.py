"""Which versions are loaded and which answers, for every wish and whatever is there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.generations.desired import DesiredModel, RolledBack
from service.generations.policy import Arrangement, Policy, arrangement, named, ranked

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
def test_ranked_versions_are_the_best_first(wanted: DesiredModel, known: set[int], expected: list[int]) -> None:
    assert ranked(wanted, known) == expected


def test_named_versions_are_pinned_labelled_or_loaded_by_hand() -> None:
    wanted = DesiredModel(pinned=(1,), loaded=(2, 5), labels={"a": 3, "b": 3}, unloaded=(5,))
    assert named(wanted) == [3, 2, 1]
    assert named(wanted.model_copy(update={"stopped": True})) == []


def arranged(
    wanted: DesiredModel,
    known: set[int],
    loaded: set[int],
    before: Arrangement,
    policy: Policy | None = None,
    refused: frozenset[int] = frozenset(),
) -> Arrangement:
    return arrangement(wanted, policy or Policy(), known, loaded, refused, before)


def test_new_version_takes_over_and_the_one_before_is_kept() -> None:
    before = Arrangement(2, frozenset({2}), 1)
    assert arranged(NOTHING, {1, 2, 3}, {1, 2, 3}, before) == Arrangement(3, frozenset({3}), 2)
    assert arranged(NOTHING, {1, 2, 3}, {1, 2, 3}, before, Policy(keep_previous=False)).previous is None
    assert arranged(NOTHING, {1, 3}, {1, 2, 3}, before).previous is None, "it is gone from the root"


def test_latest_two_are_both_loaded() -> None:
    before = Arrangement(3, frozenset({2, 3}))
    after = arranged(NOTHING, {1, 2, 3, 4}, {2, 3, 4}, before, Policy(latest=2))
    assert after == Arrangement(4, frozenset({3, 4}))


def test_rollback_swaps_what_answers_with_what_is_kept() -> None:
    back = DesiredModel(rolled_back=RolledBack(to=1, above=2))
    after = arranged(back, {1, 2}, {1, 2}, Arrangement(2, frozenset({2}), 1))
    assert after == Arrangement(1, frozenset({1}), 2)
    assert arranged(NOTHING, {1, 2}, {1, 2}, after) == Arrangement(2, frozenset({2}), 1)


def test_version_that_answers_stays_until_what_is_pinned_is_loaded() -> None:
    pinned = DesiredModel(pinned=(1,))
    before = Arrangement(2, frozenset({2}))
    assert arranged(pinned, {1, 2}, {2}, before).current == 2
    assert arranged(pinned, {1, 2}, {1, 2}, before).current == 1


def test_version_taken_out_stays_only_while_another_is_to_come() -> None:
    out = DesiredModel(unloaded=(2,))
    before = Arrangement(2, frozenset({2}))
    assert arranged(out, {1, 2}, {2}, before).current == 2
    assert arranged(out, {1, 2}, {1, 2}, before) == Arrangement(1, frozenset({1}))
    assert arranged(out, {1, 2}, {2}, before, refused=frozenset({1})).current is None
    assert arranged(out, {2}, {2}, before).current is None


def test_label_stays_where_it_was_until_its_new_version_is_loaded() -> None:
    wanted = DesiredModel(labels={"canary": 3})
    before = Arrangement(2, frozenset({1, 2}), None, {"canary": 1})
    after = arranged(wanted, {1, 2, 3}, {1, 2}, before, Policy(keep_previous=False))
    assert after.labels == {"canary": 1}
    assert after.loaded == {1, 2}
    assert arranged(wanted, {1, 2, 3}, {1, 2, 3}, after).labels == {"canary": 3}


VERSIONS = st.sets(st.integers(1, 6))
WISHES = st.builds(
    DesiredModel,
    stopped=st.booleans(),
    pinned=VERSIONS.map(tuple),
    rolled_back=st.none() | st.builds(RolledBack, to=st.integers(1, 6), above=st.integers(1, 6)),
    loaded=VERSIONS.map(tuple),
    unloaded=VERSIONS.map(tuple),
    labels=st.dictionaries(st.sampled_from(["a", "b"]), st.integers(1, 6)),
)


@given(
    st.lists(WISHES, min_size=1, max_size=6),
    VERSIONS,
    st.lists(VERSIONS, min_size=6, max_size=6),
    st.integers(1, 3),
    st.booleans(),
)
def test_whatever_is_wanted_only_what_is_loaded_answers_and_nothing_is_left_without_need(
    wishes: list[DesiredModel], known: set[int], loads: list[set[int]], latest: int, keep: bool
) -> None:
    policy, before, loaded = Policy(latest, keep), Arrangement(None), set[int]()
    for wanted, arrived in zip(wishes, loads, strict=False):
        loaded |= arrived & known
        answered = before.current is not None
        before = arranged(wanted, known, loaded, before, policy)
        assert {*before.loaded, before.current, before.previous} - {None} <= loaded
        assert before.current is None or before.current in before.loaded
        assert before.previous not in before.loaded
        assert wanted.labels.keys() == before.labels.keys() or wanted.stopped
        if wanted.stopped:
            assert before == Arrangement(None)
        elif best := [version for version in ranked(wanted, known) if version in loaded]:
            assert before.current == best[0]
        elif answered and set(ranked(wanted, known)) - set(wanted.unloaded):
            assert before.current is not None, "another version is to come, until then the old one answers"
        loaded = {*before.loaded, *(() if before.previous is None else (before.previous,))}
