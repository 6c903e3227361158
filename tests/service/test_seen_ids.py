"""Ids that were looked up, counted for many features at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from service.seen_ids import SeenIds


class Column(NamedTuple):
    values: NDArray[np.int64]


KINDS = {"user": ("user", True), "city": ("city", True), "history": ("watched", False), "hour": None}


def counts(seen: SeenIds) -> dict[tuple[str, str], float]:
    (family,) = seen.collect()
    return {(each.labels["model"], each.labels["feature"]): each.value for each in family.samples}


def columns(**sizes: int) -> dict[str, Column]:
    return {name: Column(np.zeros(size, np.int64)) for name, size in sizes.items()}


def test_single_features_have_an_id_for_each_example_and_bags_what_was_sent() -> None:
    seen = SeenIds()
    for _ in range(2):
        seen.add("m", 1, tuple(KINDS), columns(user=3, city=3, watched=7, hour=3), 3, KINDS.__getitem__)
    assert counts(seen) == {("m", "user"): 6, ("m", "city"): 6, ("m", "history"): 14}


def test_bag_that_was_not_sent_has_no_ids() -> None:
    seen = SeenIds()
    seen.add("m", 1, ("history",), {}, 5, KINDS.__getitem__)
    assert counts(seen) == {}


def test_kind_of_a_feature_is_that_of_its_version() -> None:
    seen = SeenIds()
    seen.add("m", 1, ("history",), columns(watched=7), 2, KINDS.__getitem__)
    seen.add("m", 2, ("history",), columns(watched=7), 2, lambda _: ("watched", True))
    assert counts(seen) == {("m", "history"): 9}


def test_counts_stay_when_their_version_goes() -> None:
    seen = SeenIds()
    seen.add("m", 1, ("user",), columns(user=4), 4, KINDS.__getitem__)
    seen.keep(set())
    assert counts(seen) == {("m", "user"): 4}
    seen.add("m", 1, ("user",), columns(user=4), 4, KINDS.__getitem__)
    assert counts(seen) == {("m", "user"): 8}


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.sets(st.integers(0, 11)), st.integers(0, 5)), min_size=1, max_size=40))
def test_ever_new_sets_of_features_count_as_each_alone(lookups: list[tuple[set[int], int]]) -> None:
    seen, expected = SeenIds(), dict[tuple[str, str], float]()
    for chosen, n in lookups:
        names = tuple(f"f{number}" for number in chosen)
        seen.add("m", 1, names, {}, n, lambda name: (name, True))
        for name in names:
            expected["m", name] = expected.get(("m", name), 0) + n
    assert {key: value for key, value in counts(seen).items() if value} == {k: v for k, v in expected.items() if v}


def test_more_sets_than_are_kept_lose_no_count() -> None:
    seen = SeenIds()
    for number in range(3000):
        seen.add("m", 1, ("user", f"x{number}"), {}, 1, lambda name: (name, True) if name == "user" else None)
    assert counts(seen) == {("m", "user"): 3000}
