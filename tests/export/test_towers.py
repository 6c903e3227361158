from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from bundle import manifest
from export.errors import NotConvertible, UsageError
from export.settings import ExportJob
from export.towers import (
    DenseSpec,
    FeatureSpec,
    ModelSpec,
    TableFacts,
    TensorSpec,
    TowerSpec,
    describe_features,
    describe_tower,
)
from tests.export.cutting import movies_recipe

TOWER = TowerSpec(
    name="query",
    role="query",
    call="",
    call_inputs=("user", "age"),
    keys={"vector": "query"},
    inputs=(TensorSpec("user", "float32", (None, 2), "user"), TensorSpec("input_2nd", "float32", (None,), "2nd")),
    outputs=(TensorSpec("vector", "float32", (None, 4)),),
    result="vector",
)
MODEL = ModelSpec(
    tables={"users": TableFacts("users", "users", 10, 2)},
    features={
        "user": FeatureSpec("user", "users", "single", "dense"),
        "seen": FeatureSpec("seen", "users", "bag", "ragged", "mean", weights="seen_weights"),
        "recent": FeatureSpec("recent", "users", "sequence", "sparse", length=3),
        "2nd": DenseSpec("2nd", "float32", (2,)),
    },
    towers={"query": TOWER},
)


def job(**parts: Any) -> ExportJob:
    return movies_recipe(**parts)


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


def test_describe_tower_joins_what_was_traced_with_its_forms() -> None:
    form = manifest.TowerForm(
        kind="litert", precision="f32", path="towers/query/c.tflite", max_abs_error={"vector": 1e-6}
    )
    page = describe_tower(TOWER, job(), (form,))
    assert [(part.name, part.feature) for part in page.inputs] == [("user", "user"), ("input_2nd", "2nd")]
    assert (page.role, page.result, page.serve, page.forms) == ("query", "vector", "f32", (form,))


def test_describe_tower_precision_that_is_not_there_cannot_be_served() -> None:
    form = manifest.TowerForm(kind="saved_model", precision="f32", path="towers/query/s", max_abs_error={})
    towers = {
        "query": {
            "role": "query",
            "outputs": {"vector": "query"},
            "precisions": ["f32", "int8"],
            "serve": "int8",
            "max_abs_error": {"int8": 1.0},
        }
    }
    with pytest.raises(NotConvertible, match=r"tower 'query' is to be served in int8, and LiteRT cannot run it; set"):
        describe_tower(TOWER, job(towers=towers), (form,))


def test_descriptions_import_no_tensorflow() -> None:
    program = (
        "import sys, export.towers, export.settings, export.examples, export.tracing, export.replay\n"
        "assert not {'tensorflow', 'keras', 'tf_keras'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
