"""Table rows by id, and a tower's vectors by features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bundle.columns import Column
from bundle.errors import FeatureError, UnknownRefused
from bundle.manifest import EmbeddedFeature, HashIds, TextIds
from service.errors import InvalidArgument, NotFound, TooLarge
from tests.service import oracles
from tests.service.engine.served import Served, column
from tests.service.small_bundle import GENRE_NAMES, UNKNOWN_GENRE_ROW

WORDS = TextIds(split="whitespace", ids=HashIds(buckets=50))
Load = Callable[..., Served]


def test_lookup_of_unknown_ids_by_rule_row_gives_that_row_and_is_counted(load: Load) -> None:
    service = load()
    answer = service.look_up("user", column(7, 50, -1, 0))
    assert (answer.model, answer.version, answer.table) == ("movies", 1, "users")
    assert answer.found.tolist() == [True, False, False, True]
    np.testing.assert_array_equal(answer.vectors, service.small.tables["users"][[7, 0, 0, 0]])
    assert service.value("rowcast_oov_ids_total", model="movies", feature="user") == 2


def test_lookup_in_int8_and_linked_tables_gives_float32_rows(load: Load) -> None:
    service = load(row_types={"users": "linked", "movies": "int8"})
    users = service.look_up("user", column(7, 49, 25)).vectors
    np.testing.assert_array_equal(users, service.small.tables["users"][[7, 49, 25]])
    movies = service.look_up("movie", column(*service.small.ids[[3, 39]])).vectors
    trained = service.small.tables["movies"][[4, 40]]
    assert movies.dtype == np.float32
    assert (np.abs(movies - trained) <= np.abs(trained).max(axis=1, keepdims=True) / 127 / 2 + 1e-6).all()


def test_lookup_of_unknown_ids_by_rule_zeros_gives_zeros(load: Load) -> None:
    service = load(id_kind="string")
    answer = service.look_up("history", column("m-3", "m-x"))
    assert answer.found.tolist() == [True, False]
    np.testing.assert_array_equal(answer.vectors, [service.small.tables["movies"][4], np.zeros(8)])


@pytest.mark.parametrize(
    ("feature", "why"),
    [
        ({"table": "users", "place": 1, "places": 3}, "reads one of several values of its input"),
        ({"table": "", "indicator": 8}, "is an indicator: it has no table"),
        ({"table": "users", "kind": "bag", "combiner": "mean", "ids": WORDS}, "reads texts, which have a row for each"),
    ],
)
def test_lookup_of_a_feature_without_a_row_for_an_id_alone_is_rejected(
    feature: dict[str, Any], why: str, load: Load
) -> None:
    service = load(features={"user": EmbeddedFeature.model_validate({"kind": "single", "role": "context"} | feature)})
    with pytest.raises(InvalidArgument, match=f"'user' {why}"):
        service.look_up("user", column(1))


def test_lookup_in_a_bag_reads_each_id_alone(load: Load) -> None:
    service = load()
    answer = service.look_up("genres", column("drama", "opera", "drama", "horror", "comedy"))
    rows = [GENRE_NAMES.index("drama"), UNKNOWN_GENRE_ROW, GENRE_NAMES.index("drama"), GENRE_NAMES.index("horror"), 0]
    np.testing.assert_array_equal(answer.vectors, service.small.tables["genres"][rows])


def test_lookup_in_a_sequence_is_not_cut_to_its_length(load: Load) -> None:
    service = load()
    answer = service.look_up("recent", column(*service.small.ids[:9].tolist()))
    np.testing.assert_array_equal(answer.vectors, service.small.tables["movies"][1:10])


def test_lookup_of_no_ids_is_empty(load: Load) -> None:
    assert load().look_up("user", column()).vectors.shape == (0, 8)


@pytest.mark.parametrize(
    ("feature", "ids", "kind", "message"),
    [
        ("movie", column(1000, 3), UnknownRefused, "'movie'.*id '3' .*refuses"),
        ("hour", column(1.0), InvalidArgument, "'hour' is dense"),
        ("usr", column(1), NotFound, r"no feature 'usr'; did you mean 'user'\?"),
        ("", column(1), NotFound, "no feature ''; it has '"),
        ("user", column(0.5), FeatureError, "'user'"),
        ("user", column("x"), FeatureError, "'user'"),
        ("user", column(*range(51)), TooLarge, "51 ids in one request; at most 50"),
    ],
)
def test_lookup_invalid_request_is_rejected_with_what_is_wrong(
    load: Load, feature: str, ids: Column, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        load({"max_values": 50}).look_up(feature, ids)


def test_embed_gives_the_towers_vector_for_each_example(load: Load) -> None:
    service = load()
    answer = service.embed("query", {"user": column(5, 6), "hour": column(1.0, 2.0)})
    expected = [oracles.query_vector(service.small, 5, hour=1.0), oracles.query_vector(service.small, 6, hour=2.0)]
    np.testing.assert_allclose(answer.vectors, expected, 1e-5, 1e-5)


def test_embed_by_the_candidate_tower_gives_the_indexed_vectors(load: Load) -> None:
    service = load()
    small = service.small
    flat = [name for names in small.genres for name in names]
    offsets = np.concatenate([[0], np.cumsum([len(names) for names in small.genres])])
    features = {"movie": Column(small.ids), "year": Column(small.years)}
    answer = service.embed("candidate", {**features, "genres": column(*flat, offsets=offsets.tolist())})
    np.testing.assert_allclose(answer.vectors, small.vectors, 1e-5, 1e-5)


@pytest.mark.parametrize(
    ("tower", "features", "kind", "message"),
    [
        ("", {"user": column(1)}, InvalidArgument, "'tower' must be named: .*'candidate', 'query', 'ranking'"),
        ("item", {"user": column(1)}, NotFound, "no tower 'item'"),
        ("query", {"user": column(1), "year": column(1.0)}, InvalidArgument, "'year' is not taken by tower 'query'"),
        ("query", {"user": column(*range(9))}, TooLarge, "9 queries"),
        ("query", {"user": column()}, InvalidArgument, "no query"),
    ],
)
def test_embed_invalid_request_is_rejected_with_what_is_wrong(
    load: Load, tower: str, features: dict[str, Column], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        load({"max_queries": 8}).embed(tower, features)
