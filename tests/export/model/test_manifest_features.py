from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bundle.format import manifest
from export.errors import UsageError
from export.graph.specs import DenseSpec, FeatureSpec, ModelSpec, TableFacts
from export.model.manifest_features import describe_features, model_vocabularies
from export.recipe.schema import ExportJob
from tests.export.cutting import movies_recipe

MODEL = ModelSpec(
    tables={"users": TableFacts("users", "users", 10, 2)},
    features={
        "user": FeatureSpec("user", "users", "single", "dense"),
        "seen": FeatureSpec("seen", "users", "bag", "ragged", "mean", weights="seen_weights"),
        "recent": FeatureSpec("recent", "users", "sequence", "sparse", length=3),
        "2nd": DenseSpec("2nd", "float32", (2,)),
    },
    towers={},
)
THIRD = manifest.Unknown(rule="row", row=3)
LISTED = manifest.VocabularyIds(vocabulary="kinds", oov_buckets=2, oov_first_row=3)
CROSSED = manifest.CrossedIds(keys=(manifest.CrossKey(dtype="int64"), manifest.CrossKey(dtype="string")), buckets=10)


def job(**parts: Any) -> ExportJob:
    return movies_recipe(**parts)


def told_by_the_model() -> ModelSpec:
    kind = FeatureSpec("kind", "users", "bag", "dense", "sum", rule=LISTED, keys=(("a", "b", "c"),), padding="")
    features = {
        "kind": kind,
        "user": FeatureSpec(
            "user", "users", "single", "dense", padding=-1, unknown=manifest.Unknown(rule="row", row=3)
        ),
        "user*kind": FeatureSpec("user*kind", "users", "bag", "dense", "sum", inputs=("user", "kind"), rule=CROSSED),
    }
    return ModelSpec(MODEL.tables, features, {})


def test_describe_features_rules_of_the_model_are_told_as_data() -> None:
    pages = describe_features(told_by_the_model(), job(features={"kind": {"role": "candidate", "default": ["d"]}}))
    kind, user, cross = pages.values()
    assert isinstance(kind, manifest.EmbeddedFeature)
    assert isinstance(user, manifest.EmbeddedFeature)
    assert (kind.ids, kind.padding, kind.default) == (LISTED, "", ["d"])
    assert (user.padding, user.unknown) == (-1, THIRD)
    assert isinstance(cross, manifest.EmbeddedFeature)
    assert isinstance(cross.ids, manifest.CrossedIds)
    assert (cross.inputs, cross.role, cross.default) == (("user", "kind"), "candidate", None)
    assert [(key.role, key.default) for key in cross.ids.keys] == [("context", None), ("candidate", ["d"])]


def test_model_vocabularies_returns_what_the_model_holds() -> None:
    assert model_vocabularies(told_by_the_model()) == {"kinds": ("a", "b", "c")}


def test_describe_features_second_rule_beside_the_models_is_refused() -> None:
    with pytest.raises(UsageError, match=r"features.kind.ids: the model itself makes rows of this input \(vocabulary"):
        describe_features(told_by_the_model(), job(features={"kind": {"ids": {"kind": "hash"}}}))
    alone = replace(told_by_the_model(), features={"user": told_by_the_model().features["user"]})
    with pytest.raises(UsageError, match=r"features.user.unknown: the model itself says"):
        describe_features(alone, job(features={"user": {"unknown": {"rule": "refuse"}}}))


def test_describe_features_takes_kind_combiner_and_length_from_the_model() -> None:
    pages = describe_features(MODEL, job())
    assert pages == {
        "user": manifest.EmbeddedFeature(kind="single", table="users", role="context"),
        "seen": manifest.EmbeddedFeature(
            kind="bag", table="users", role="context", combiner="mean", encoding="ragged", weighted=True
        ),
        "recent": manifest.EmbeddedFeature(kind="sequence", table="users", role="context", length=3),
        "2nd": manifest.DenseFeature(kind="dense", role="context", shape=(2,)),
    }


def test_describe_features_takes_rules_and_defaults_from_the_recipe() -> None:
    features = {
        "user": {
            "ids": {"kind": "vocabulary", "vocabulary": "names", "first_row": 2},
            "unknown": {"rule": "row", "row": 9},
        },
        "seen": {"ids": {"kind": "hash"}, "default": [1]},
        "recent": {"ids": {"kind": "buckets", "boundaries": [1.0, 2.0]}},
        "2nd": {"default": [0.0, 1.0]},
    }
    pages = describe_features(MODEL, job(features=features, vocabularies={"names": {"file": "names.txt"}}))
    user, seen, recent, dense = pages["user"], pages["seen"], pages["recent"], pages["2nd"]
    assert isinstance(user, manifest.EmbeddedFeature)
    assert isinstance(seen, manifest.EmbeddedFeature)
    assert isinstance(recent, manifest.EmbeddedFeature)
    assert user.ids == manifest.VocabularyIds(vocabulary="names", first_row=2)
    assert user.unknown == manifest.Unknown(rule="row", row=9)
    assert seen.ids == manifest.HashIds(buckets=10)
    assert seen.default == [1]
    assert recent.ids == manifest.BucketIds(boundaries=(1.0, 2.0))
    assert dense.default == [0.0, 1.0]


def test_describe_features_role_is_candidate_where_a_corpus_has_a_column_unless_stated() -> None:
    corpus = {"file": "c.csv", "id": "id", "features": {"seen": "s", "2nd": "t"}}
    pages = describe_features(MODEL, job(candidates={"c": corpus}, features={"2nd": {"role": "context"}}))
    assert {name: page.role for name, page in pages.items()} == {
        "user": "context",
        "seen": "candidate",
        "recent": "context",
        "2nd": "context",
    }


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"features": {"usr": {}}}, "features.usr: no tower takes a feature of that name; did you mean 'user'?"),
        ({"features": {"seen_weights": {}}}, "this input holds the weights of feature 'seen', and is sent with it"),
        (
            {"candidates": {"c": {"file": "c.csv", "id": "id", "features": {"zzzz": "z"}}}},
            "candidates.c.features.zzzz: no tower takes a feature of that name; they take 2nd, recent, seen, user",
        ),
        ({"features": {"2nd": {"unknown": {"rule": "refuse"}}}}, "features.2nd: it reads no table"),
        (
            {"features": {"seen": {"ids": {"kind": "hash", "buckets": 11}}}},
            "features.seen.ids.buckets reaches row 10, table 'users' has 10 rows",
        ),
        (
            {"features": {"seen": {"ids": {"kind": "buckets", "boundaries": list(range(10))}}}},
            "features.seen.ids.boundaries reaches row 10, table 'users' has 10 rows",
        ),
        ({"features": {"user": {"unknown": {"rule": "row", "row": 10}}}}, "row is 10; table 'users' has 10 rows"),
        (
            {"features": {"user": {"ids": {"kind": "vocabulary", "vocabulary": "nms"}}}},
            "features.user.ids.vocabulary is 'nms'; the recipe's vocabularies: none",
        ),
    ],
)
def test_describe_features_recipe_that_does_not_fit_says_so(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("?", r"\?")):
        describe_features(MODEL, job(**parts))
