"""What callers are told of a model."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bundle.manifest import BucketIds, EmbeddedFeature
from service.engine.descriptions import ModelDetails
from service.engine.requests import Target
from tests.service.running import Running
from tests.service.small_bundle import SmallBundle

Write = Callable[..., SmallBundle]
Run = Callable[..., Running]


def described(service: Running) -> ModelDetails:
    return service.engine.model(Target())


def test_signatures_tell_each_call_and_its_tower(write: Write, run: Run) -> None:
    write()
    calls = [(each.call, each.tower, each.outputs) for each in described(run()).calls]
    assert calls == [
        ("retrieve", "query", ("vector",)),
        ("rank", "ranking", ("score", "watch", "rating")),
        ("recommend", "ranking", ("score",)),
        ("embed", "query", ("vector",)),
        ("embed", "candidate", ("vector",)),
        ("embed", "ranking", ("score",)),
    ]


def test_recommend_takes_what_query_tower_and_contexts_take_once(write: Write, run: Run) -> None:
    write()
    recommend = next(each for each in described(run()).calls if each.call == "recommend")
    names = [feature.name for feature in recommend.features]
    assert sorted(names) == ["city", "history", "hour", "liked", "mood", "recent", "user"]


@pytest.mark.parametrize("id_kind", ["int64", "string"])
def test_features_tell_all_that_a_caller_must_know(write: Write, run: Run, id_kind: str) -> None:
    write(id_kind=id_kind)
    rank = next(each for each in described(run()).calls if each.call == "rank")
    features = {feature.name: feature for feature in rank.features}
    assert (features["user"].type, features["user"].unknown, features["user"].required) == ("int64", "row 0", True)
    assert (features["liked"].kind, features["liked"].weighted, features["liked"].combiner) == ("bag", True, "sum")
    assert (features["liked"].default, features["liked"].required) == ([], False)
    assert (features["recent"].kind, features["recent"].length) == ("sequence", 3)
    assert (features["mood"].kind, features["mood"].type, features["mood"].shape) == ("dense", "float32", (2,))
    movie = features["movie"]
    assert (movie.type, movie.role, movie.stored, movie.required) == (id_kind, "candidate", True, False)
    assert (movie.unknown, movie.table) == ("refuse", "movies")


def test_a_stored_feature_must_be_sent_to_embed(write: Write, run: Run) -> None:
    write()
    embed = next(each for each in described(run()).calls if (each.call, each.tower) == ("embed", "candidate"))
    assert all(feature.required and not feature.stored for feature in embed.features)


def test_types_of_hashed_and_bucketed_features(write: Write, run: Run) -> None:
    ages = EmbeddedFeature(kind="single", table="users", role="context", ids=BucketIds(boundaries=(18.0, 65.0)))
    write(features={"user": ages})
    retrieve = described(run()).calls[0]
    kinds = {feature.name: feature.type for feature in retrieve.features}
    assert (kinds["user"], kinds["city"]) == ("float32", "int64 or string")


def test_parts_tell_sizes_and_recall(write: Write, run: Run) -> None:
    write(size=25)
    details = described(run())
    assert {table.name: (table.rows, table.dim, table.dtype) for table in details.tables}["movies"] == (
        26,
        8,
        "float32",
    )
    index, corpus = details.indexes[0], details.corpora[0]
    assert (index.name, index.corpus, index.size, index.dim, index.recall_k) == ("movies", "movies", 25, 8, 10)
    assert (corpus.size, corpus.id_type, set(corpus.features)) == (25, "int64", {"movie", "genres", "year"})
    assert set(corpus.attributes) == {"title", "year", "rating", "genres"}
