"""Table rows by id, and contexts by id: what is stored, defaults for what neither has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bundle.format.manifest import EmbeddedFeature, InputLength, TextIds, Unknown
from service.errors import InvalidArgument
from tests.bundles.small import feature_entries
from tests.id_graphs import hash_ids
from tests.units.service.engine.served import Served, column

WORDS = TextIds(split="whitespace", ids=hash_ids(50))
Load = Callable[..., Served]


def test_lookup_in_int8_and_linked_tables_gives_float32_rows(load: Load) -> None:
    service = load(row_types={"users": "linked", "movies": "int8"})
    users = service.look_up("user", column(7, 49, 25)).vectors
    np.testing.assert_array_equal(users, service.small.tables["users"][[7, 49, 25]])
    movies = service.look_up("movie", column(*service.small.ids[[3, 39]])).vectors
    trained = service.small.tables["movies"][[4, 40]]
    assert movies.dtype == np.float32
    assert (
        np.abs(movies - trained) <= np.abs(trained).max(axis=1, keepdims=True) / 127 / 2 + 1e-6
    ).all()


@pytest.mark.parametrize(
    ("feature", "reason"),
    [
        ({"table": "users", "place": 1, "places": 3}, "reads one of several values of its input"),
        ({"table": "", "indicator": 8}, "is an indicator: it has no table"),
        (
            {"table": "users", "kind": "bag", "combiner": "mean", "ids": WORDS},
            "reads texts: each of their words has a row",
        ),
    ],
)
def test_lookup_of_a_feature_without_a_row_for_an_id_alone_is_rejected(
    feature: dict[str, Any], reason: str, load: Load
) -> None:
    service = load(
        features={
            "user": EmbeddedFeature.model_validate({"kind": "single", "role": "context"} | feature)
        }
    )
    with pytest.raises(InvalidArgument, match=f"'user' {reason}"):
        service.look_up("user", column(1))


USER_OR_0 = {
    "user": EmbeddedFeature(
        kind="single", table="users", role="context", unknown=Unknown(rule="row", row=0), default=0
    )
}


def test_rank_of_an_unknown_context_takes_the_defaults_and_counts_it(load: Load) -> None:
    service = load(users=True, features=USER_OR_0)
    movies = service.small.ids[[1, 2, 3, 4]]
    ranked = service.rank(
        context_ids=np.array([7, 999, 3, 998]), candidate_ids=movies, offsets=np.arange(5)
    ).scores
    stored = service.rank(
        context_ids=np.array([7, 3]), candidate_ids=movies[::2], offsets=np.arange(3)
    ).scores
    default = service.rank(
        context={"user": column(0, 0)}, candidate_ids=movies[1::2], offsets=np.arange(3)
    ).scores
    np.testing.assert_allclose(ranked, [stored[0], default[0], stored[1], default[1]], 1e-6)
    assert service.value("rowcast_missing_contexts_total", model="movies", store="users") == 2


def test_lists_that_were_cut_or_padded_are_counted_once_by_model_and_input(
    load: Callable[..., Served],
) -> None:
    length = InputLength(values=3, pad=1000, keep="last")
    recent = feature_entries()["recent"].model_copy(update={"input_length": length})
    service = load(features={"recent": recent})
    user = column(7)
    service.recommend(
        context={"user": user, "recent": column(*service.small.ids[:4], offsets=[0, 4])}, k=2
    )
    service.rank(
        context={"user": user, "recent": column(1000, offsets=[0, 1])},
        candidate_ids=service.small.ids[:2],
    )
    labels = {"model": "movies", "input": "recent"}
    assert service.value("rowcast_cut_lists_total", **labels) == 1
    assert service.value("rowcast_padded_lists_total", **labels) == 1
