"""What callers are told of a model."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bundle.manifest import BucketIds, DenseFeature, EmbeddedFeature, HashIds, HeadEffect, TextIds, dump
from bundle.paths import MANIFEST
from service.engine.descriptions import EffectDetails, ModelDetails
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


def test_input_whose_places_are_read_is_a_list_of_just_so_many(write: Write, run: Run) -> None:
    placed = EmbeddedFeature(kind="single", table="users", role="context", place=1, places=3)
    write(features={"user": placed})
    user = next(each for each in described(run()).calls[0].features if each.name == "user")
    assert (user.kind, user.type, user.shape, user.length, user.table) == ("dense", "int64", (3,), 0, "")


def test_input_whose_words_are_ids_is_one_string(write: Write, run: Run) -> None:
    words = TextIds(split="whitespace", ids=HashIds(buckets=50))
    told = {"kind": "bag", "combiner": "mean", "table": "users", "role": "context", "ids": words}
    write(features={"user": EmbeddedFeature.model_validate(told)})
    service = described(run())
    user = next(each for each in service.calls[0].features if each.name == "user")
    assert (user.kind, user.type, user.length, user.combiner) == ("single", "string", 0, "")
    reader = next(each for each in service.readers if each.name == "user")
    assert (reader.kind, reader.combiner, reader.ids["kind"]) == ("bag", "mean", "text")


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
    assert {table.name: table.bytes for table in details.tables}["movies"] == 26 * 8 * 4


def test_towers_tell_their_parts_forms_and_formula(write: Write, run: Run) -> None:
    small = write(parts=True, formula="watch * 2")
    ranking = {tower.name: tower for tower in described(run()).towers}["ranking"]
    assert (ranking.role, ranking.result, ranking.formula, ranking.device) == ("ranking", "score", "watch * 2", "cpu")
    page = small.manifest.towers["ranking"]
    assert [each.name for each in ranking.inputs] == [each.name for each in page.inputs]
    assert ranking.inputs[0].readers == ("user",)
    assert ranking.inputs[0].shape == (-1, 8)
    assert [(form.kind, form.runs) for form in ranking.forms] == [("saved_model", False), ("litert", False)]
    assert [(part.name, part.per) for part in ranking.parts][:3] == [
        ("context", "context"),
        ("trunk", "candidate"),
        ("score", "candidate"),
    ]
    trunk = ranking.parts[1]
    assert {each.name: (each.readers, each.tensor) for each in trunk.inputs} == {
        "packed": (("movie", "mood", "genres", "hour", "year"), ""),
        "context": ((), "context"),
    }
    assert [form.runs for part in ranking.parts for form in part.forms] == [True] * 5


def test_whole_tower_tells_the_form_that_runs(write: Write, run: Run) -> None:
    write()
    query = {tower.name: tower for tower in described(run()).towers}["query"]
    assert [(form.kind, form.precision, form.runs) for form in query.forms] == [
        ("saved_model", "f32", False),
        ("litert", "f32", True),
    ]
    assert (query.parts, query.formula) == ((), "")


def test_inputs_tell_what_reads_them_and_what_becomes_of_ids(write: Write, run: Run) -> None:
    again = EmbeddedFeature(kind="single", table="cities", role="context", inputs=("user",), ids=HashIds(buckets=16))
    write(features={"user@cities": again}, users=True)
    details = described(run())
    rank = next(each for each in details.calls if each.call == "rank")
    user = next(each for each in rank.features if each.name == "user")
    assert (user.readers, user.stored, user.required) == (("user", "user@cities"), True, False)
    readers = {reader.name: reader for reader in details.readers}
    assert readers["user@cities"].inputs == ("user",)
    assert readers["user@cities"].ids == {"kind": "hash", "buckets": 16, "first_row": 0}
    assert readers["liked"].ids["kind"] == "vocabulary"
    assert (readers["liked"].combiner, readers["liked"].encoding, readers["liked"].weighted) == ("sum", "sparse", True)
    assert (readers["mood"].shape, readers["mood"].dtype, readers["mood"].take) == ((2,), "float32", "values")
    (store,) = details.contexts
    assert (store.name, store.size, store.id_type, store.features) == ("users", 3, "int64", ("user", "liked", "mood"))


def test_effects_of_a_precision_are_told(write: Write, run: Run) -> None:
    small = write()
    tower = small.manifest.towers["query"]
    effect = HeadEffect(kendall_tau=0.98, overlap=0.9, k=10)
    form = tower.forms[0].model_copy(update={"precision": "bf16", "effect": {"vector": effect}})
    page = tower.model_copy(update={"forms": (*tower.forms[1:], form)})
    manifest = small.manifest.model_copy(update={"towers": {**small.manifest.towers, "query": page}})
    (small.directory / MANIFEST).write_bytes(dump(manifest))
    query = {tower.name: tower for tower in described(run()).towers}["query"]
    told = {form.precision: form.effects for form in query.forms}
    assert told["bf16"]["vector"] == EffectDetails(0.98, 0.9, 10)
    assert told["f32"] == {}


def test_readers_tell_what_becomes_of_places_long_rows_and_empty_bags(write: Write, run: Run) -> None:
    placed = EmbeddedFeature(kind="single", table="users", role="context", place=1, places=3)
    told = {"kind": "bag", "table": "cities", "role": "context", "inputs": ("user",), "combiner": "mean"}
    bag = EmbeddedFeature.model_validate(told | {"max_norm": 1.5, "empty_row": 0, "padding": -1})
    mood = DenseFeature(kind="dense", role="context", shape=(2,), dtype="int64", below=9)
    write(features={"user": placed, "user@cities": bag, "mood": mood})
    readers = {reader.name: reader for reader in described(run()).readers}
    assert (readers["user"].place, readers["user"].places, readers["user"].max_norm) == (1, 3, None)
    clipped = readers["user@cities"]
    assert (clipped.max_norm, clipped.empty_row, clipped.padding, clipped.place) == (1.5, 0, -1, None)
    assert (readers["mood"].below, readers["mood"].padding) == (9, None)
