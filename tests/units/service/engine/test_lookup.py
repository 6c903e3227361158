"""Table rows by id, and contexts by id: what is stored, defaults for what neither has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bundle.errors import FeatureError
from bundle.features.columns import Column
from bundle.format.manifest import EmbeddedFeature, InputLength, TextIds, Unknown
from service.engine.lookup import count_examples
from service.errors import InvalidArgument, NotFound, TooLarge
from tests.bundles.small import feature_entries
from tests.id_graphs import hash_ids
from tests.units.service.engine.served import Served, column

WORDS = TextIds(split="whitespace", ids=hash_ids(50))
Load = Callable[..., Served]


def test_lookup_of_unknown_ids_by_rule_row_gives_that_row_and_is_counted(load: Load) -> None:
    service = load()
    result = service.look_up("user", column(7, 50, -1, 0))
    assert (result.model, result.version, result.table) == ("movies", 1, "users")
    assert result.found.tolist() == [True, False, False, True]
    np.testing.assert_array_equal(result.vectors, service.small.tables["users"][[7, 0, 0, 0]])
    assert service.value("rowcast_oov_ids_total", model="movies", feature="user") == 2


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


def test_lookup_of_unknown_ids_by_rule_zeros_gives_zeros(load: Load) -> None:
    service = load(id_kind="string")
    result = service.look_up("history", column("m-3", "m-x"))
    assert result.found.tolist() == [True, False]
    np.testing.assert_array_equal(result.vectors, [service.small.tables["movies"][4], np.zeros(8)])


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


@pytest.mark.parametrize(
    ("feature", "ids", "kind", "message"),
    [
        ("usr", column(1), NotFound, r"no feature 'usr'; did you mean 'user'\?"),
        ("user", column("x"), FeatureError, "'user'"),
        ("user", column(*range(51)), TooLarge, "the request has 51 values; at most 50"),
    ],
)
def test_lookup_invalid_request_is_rejected_with_what_is_wrong(
    load: Load, feature: str, ids: Column, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        load({"max_values": 50}).look_up(feature, ids)


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


def test_rank_context_ids_without_a_store_are_rejected(load: Load) -> None:
    service = load()
    with pytest.raises(InvalidArgument, match="no context store; send the features"):
        service.rank(context_ids=np.array([7]), candidate_ids=service.small.ids[:1])


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


@pytest.mark.parametrize(
    ("length", "count"),
    [
        (InputLength(values=3), 2),
        (InputLength(values=4), 1),
        (InputLength(values=3, keep="last"), 1),
        (None, 1),
    ],
)
def test_packed_lists_of_a_fixed_length_show_how_many_they_are(
    load: Load, length: InputLength | None, count: int
) -> None:
    recent = feature_entries()["recent"].model_copy(
        update={"input_length": length, "default": None}
    )
    manifest = load(features={"recent": recent}).version.manifest
    assert count_examples(manifest, {"recent": column(*range(6))}) == count
