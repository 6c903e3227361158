"""What a filter must be, and which candidates it leaves."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

from service.engine.calls import Condition, Filter, IdLists
from tests.bundles.small import GENRE_NAMES
from tests.units.service import reference
from tests.units.service.engine.served import Served

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
