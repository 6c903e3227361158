"""What a filter must be, and which candidates it leaves."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

from service.engine.calls import Condition, Filter, IdLists
from service.engine.retrieval.filters import not_among
from service.errors import InvalidArgument, TooLarge
from tests.bundles.small import GENRE_NAMES
from tests.units.service import reference
from tests.units.service.engine.served import Served, column

Load = Callable[..., Served]
ONES = np.ones(8, np.float32)


def words(*values: str) -> Any:
    return np.array(values, object)


def condition(**conditions: Any) -> Condition:
    lists = {name: np.array(conditions[name]) for name in ("allow", "deny") if name in conditions}
    conditions.update(
        {
            name: values.astype(object) if values.dtype.kind == "U" else values
            for name, values in lists.items()
        }
    )
    return Condition(**conditions)


@pytest.mark.parametrize(
    ("filter_", "message"),
    [
        (
            {"yer": Condition(ge=1)},
            r"filter.yer: corpus 'movies' has no attribute 'yer'; did you mean 'year'\?",
        ),
        (
            {"title": Condition(allow=words("x"))},
            r"filter.title: 'title' is not filtered on; name it in corpora.movies.filters of "
            r"the recipe and export",
        ),
        (
            {"year": Condition()},
            "filter.year has no condition; allow, deny, ge, gt, le, lt or is_null was expected",
        ),
        (
            {"year": Condition(allow=np.empty(0, np.int64))},
            "filter.year.allow is empty; at least one value was expected; leave it out",
        ),
        (
            {"year": Condition(deny=words("late"))},
            "filter.year.deny: 'late' is no integer id; an integer in",
        ),
        ({"year": Condition(allow=np.array([1.5], np.float32))}, "filter.year.allow: 1.5 is no id"),
        (
            {"genres": Condition(allow=np.array([5]))},
            "filter.genres.allow holds 5; a string was expected",
        ),
        (
            {"classic": Condition(allow=np.array([1]))},
            "filter.classic.allow holds 1; true or false was expected",
        ),
        (
            {"classic": Condition(deny=words("True"))},
            "filter.classic.deny holds 'True'; true or false was expected",
        ),
        (
            {"genres": Condition(lt=5)},
            "filter.genres.lt: 'genres' is list<string>; a number for bounds was",
        ),
        (
            {"classic": Condition(ge=0)},
            "filter.classic.ge: 'classic' is bool; a number for bounds was",
        ),
        (
            {"rating": Condition(deny=np.array([1]))},
            "filter.rating.deny: 'rating' is double; ge, gt, le, lt or is_null was exp",
        ),
        (
            {"year": Condition(gt=float("nan"))},
            "filter.year.gt is nan; a finite number was expected",
        ),
        (
            {"rating": Condition(le=float("-inf"))},
            "filter.rating.le is -inf; a finite number was expected",
        ),
    ],
)
def test_filter_that_suits_no_attribute_is_rejected_with_what_is_wrong(
    load: Load, filter_: dict[str, Condition], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        load().retrieve(vectors=ONES, filter=Filter(filter_))


@pytest.mark.parametrize(
    ("accepted", "rejected", "message"),
    [
        (words("5"), np.array([5]), "filter.genres.allow holds 5; a string was expected"),
        (words("5"), np.array(["5", 5], object), "filter.genres.allow holds 5"),
        (words("5"), np.array(["5", None], object), "filter.genres.allow holds None"),
    ],
)
def test_filter_is_rejected_also_after_one_that_reads_alike_was_accepted(
    load: Load, accepted: Any, rejected: Any, message: str
) -> None:
    service = load()
    for _ in range(2):
        service.retrieve(vectors=ONES, filter=Filter({"genres": Condition(allow=accepted)}))
    with pytest.raises(InvalidArgument, match=message):
        service.retrieve(vectors=ONES, filter=Filter({"genres": Condition(allow=rejected)}))


def test_filter_counts_its_values_with_those_of_the_request(load: Load) -> None:
    service = load({"max_values": 10})
    service.retrieve(vectors=ONES, filter=Filter({"year": Condition(allow=np.arange(10))}))
    with pytest.raises(TooLarge, match=r"11 values; at most 10 .*max_values"):
        service.retrieve(
            vectors=ONES,
            filter=Filter({"year": Condition(allow=np.arange(9), deny=np.arange(2))}),
        )


def test_filter_of_many_strings_is_compiled_once_and_leaves_the_same_in_any_order(
    load: Load,
) -> None:
    service = load()
    many = [*GENRE_NAMES[:2], *(f"unknown {number}" for number in range(20_000))]
    results = [
        service.retrieve(vectors=ONES, filter=Filter({"genres": Condition(allow=words(*tokens))}))
        for tokens in (many, many, many[::-1], many[:2])
    ]
    ids = [result.ids.tolist() for result in results]
    assert ids[0]
    assert ids == [ids[0]] * 4
    without = service.retrieve(
        vectors=ONES, filter=Filter({"genres": Condition(allow=words(*many[2:]))})
    )
    assert without.ids.tolist() == []


def random_filter(random: np.random.Generator) -> dict[str, dict[str, Any]]:
    """A filter as JSON: every condition that an attribute takes, or a part of them."""
    genres = [*GENRE_NAMES, "opera"]

    def some(values: list[Any]) -> dict[str, Any]:
        names = [name for name in ("allow", "deny") if random.random() < 0.5]
        return {
            name: [
                values[index] for index in random.integers(0, len(values), random.integers(1, 4))
            ]
            for name in names
        }

    def bounds(low: float, high: float) -> dict[str, Any]:
        names = [name for name in ("ge", "gt", "le", "lt") if random.random() < 0.25]
        drawn = [float(random.uniform(low, high)) for _ in names]
        return {
            name: bound if random.random() < 0.5 else int(bound)
            for name, bound in zip(names, drawn, strict=True)
        }

    parts = {
        "genres": some(genres),
        "classic": some([True, False]),
        "year": some(list(range(1985, 2035))) | bounds(1985, 2035),
        "rating": bounds(-1, 11),
    }
    return {name: part for name, part in parts.items() if part and random.random() < 0.6}


@pytest.mark.parametrize("index_kind", ["brute_force", "tree_ah"])
def test_filters_leave_what_meets_every_condition_and_always_k_of_it(
    load: Load, index_kind: str
) -> None:
    tree = {"num_leaves": 6, "leaves_to_search": 2, "dimensions_per_block": 2, "reorder": 10}
    service = load(index_kind=index_kind, parameters=tree if index_kind == "tree_ah" else {})
    small = service.small
    random = np.random.default_rng(4)
    for _ in range(300):
        filter_value = random_filter(random)
        vector = random.normal(size=8).astype(np.float32)
        k = int(random.integers(1, 41))
        excluded = random.choice(small.ids, random.integers(0, 9))
        json_filter = {
            name: condition(
                **{
                    key: [str(item_value).lower() for item_value in value]
                    if name == "classic"
                    else value
                    for key, value in wanted_condition.items()
                }
            )
            for name, wanted_condition in filter_value.items()
        }
        result = service.retrieve(
            vectors=vector,
            k=k,
            filter=Filter(json_filter),
            exclude_ids=IdLists(excluded),
            explain=True,
        )
        out = {*reference.excluded_by(small, filter_value), *excluded.tolist()}
        expected = reference.neighbors(small, vector.astype(np.float64), 40, list(out))
        (explained,) = result.explanations
        assert (explained.matches, explained.selectivity) == (len(expected), len(expected) / 40), (
            filter_value
        )
        assert result.ids.size == min(k, len(expected)), filter_value
        assert bool(explained.shortfall) == (len(expected) < k)
        assert (explained.path == "none") == (not expected)
        assert not out & set(result.ids.tolist()), filter_value
        if explained.path != "index":
            assert result.ids.tolist() == [movie for movie, _ in expected[:k]], filter_value


def test_filter_beside_queries_of_their_own_exclusions_leaves_each_its_own(load: Load) -> None:
    service = load()
    ids = service.small.ids
    late = Filter({"year": Condition(ge=2025)})
    exclude = IdLists(ids[[35, 36, 37, 3]], np.array([0, 2, 2, 4]))
    result = service.retrieve(vectors=np.ones((3, 8), np.float32), filter=late, exclude_ids=exclude)
    id_sets = [set(ids.tolist()) for ids in np.split(result.ids, result.offsets[1:-1])]
    assert id_sets == [set(ids[37:]), set(ids[35:]), {ids[35], ids[36], ids[38], ids[39]}]
    assert service.value("rowcast_filtered_searches_total", path="exact") == 3


def test_denied_candidate_is_no_neighbor_with_or_without_a_filter(load: Load) -> None:
    service = load()
    ids = service.small.ids
    for index in service.version.indexes.values():
        index.corpus.denied.positions = np.array([3, 36], np.uint32)
    for options in (
        {},
        {"exact": True},
        {"filter": Filter({"year": Condition(ge=1990)})},
        {"exclude_ids": IdLists(ids[:2])},
        {"exclude_ids": IdLists(ids[2:5]), "exact": True},
        {"exclude_ids": IdLists(ids[30:40]), "filter": Filter({"year": Condition(ge=1990)})},
    ):
        neighbors = service.retrieve(vectors=ONES, k=40, explain=True, **options)
        assert not {ids[3], ids[36]} & set(neighbors.ids.tolist())
        assert neighbors.ids.size == neighbors.explanations[0].matches < 40
    recommended = service.recommend(context={"user": column(5)}, k=40, pool_size=40)
    assert recommended.ids.size == 38


def test_explanation_counts_what_is_allowed(load: Load) -> None:
    """Denied and excluded candidates count once each, whether or not they match or coincide."""
    service = load()
    ids = service.small.ids
    lists: tuple[list[int], ...] = ([], [3], [2, 3], [4, 36, 37], [0, 3, 36, 39])
    for denied, excluded, year in product(lists, lists, (None, 1990, 2020, 2100)):
        for index in service.version.indexes.values():
            index.corpus.denied.positions = np.array(denied, np.uint32)
        options: dict[str, Any] = {"exclude_ids": IdLists(ids[np.array(excluded, np.int64)])}
        if year is not None:
            options["filter"] = Filter({"year": Condition(ge=year)})
        for exact in (False, True):
            neighbors = service.retrieve(vectors=ONES, k=40, explain=True, exact=exact, **options)
            (explanation,) = neighbors.explanations
            assert explanation.matches == neighbors.ids.size, (denied, excluded, year, exact)
            assert explanation.selectivity == neighbors.ids.size / 40


@pytest.mark.parametrize("remaining_count", [0, 1, 7, 99, 100, 101, 500, 999, 1000])
def test_positions_that_are_not_among_others_are_all_the_rest(remaining_count: int) -> None:
    shuffled = np.random.default_rng(remaining_count).permutation(1000).astype(np.uint32)
    expected = np.sort(shuffled[:remaining_count])
    remaining = not_among(np.sort(shuffled[remaining_count:]), 1000)
    assert remaining.dtype == np.uint32
    assert remaining.tolist() == expected.tolist()
