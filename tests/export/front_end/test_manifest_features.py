from __future__ import annotations

from typing import Any

import pytest

from bundle.format import manifest
from export.errors import UsageError
from export.front_end.manifest_features import describe_features
from export.front_end.specs import ModelSpec, TableFacts
from export.recipe.schema import ExportJob
from tests.export.traced_features import dense, embedded
from tests.export.traced_models import movies_recipe

MODEL = ModelSpec(
    tables={"users": TableFacts("users", "users", 10, 2)},
    features={
        "user": embedded("user", "users"),
        "seen": embedded(
            "seen", "users", kind="bag", encoding="ragged", combiner="mean", weights="seen_weights"
        ),
        "recent": embedded("recent", "users", kind="sequence", encoding="sparse", length=3),
        "2nd": dense("2nd", "float32", (2,)),
    },
    towers={},
)
LISTED = manifest.VocabularyIds(vocabulary="kinds", oov_buckets=2, oov_first_row=3)


VOCABULARIES = {
    "vocabularies": {
        "names": {"file": "names.txt", "dtype": "string"},
        "numbers": {"file": "numbers.txt", "dtype": "int64"},
    }
}


def job(**parts: Any) -> ExportJob:
    return movies_recipe(**parts)


def listed(vocabulary: str, mask: int | str) -> dict[str, Any]:
    return {"ids": {"kind": "vocabulary", "vocabulary": vocabulary, "mask": mask}}


@pytest.mark.parametrize(("vocabulary", "mask"), [("names", ""), ("numbers", 0)])
def test_describe_features_mask_of_the_dtype_of_the_keys_is_in_the_manifest(
    vocabulary: str, mask: int | str
) -> None:
    entries = describe_features(
        MODEL, job(features={"user": listed(vocabulary, mask)}, **VOCABULARIES)
    )
    user = entries["user"]
    assert isinstance(user, manifest.EmbeddedFeature)
    assert user.ids == manifest.VocabularyIds(vocabulary=vocabulary, mask=mask)


def test_describe_features_second_rule_beside_the_models_is_refused() -> None:
    kind = embedded(
        "kind",
        "users",
        kind="bag",
        combiner="sum",
        ids=LISTED,
        keys=(("a", "b", "c"),),
        padding="",
    )
    user = embedded("user", "users", unknown=manifest.Unknown(rule="row", row=3))
    ids = job(features={"kind": {"ids": {"kind": "hash"}}})
    unknown = job(features={"user": {"unknown": {"rule": "refuse"}}})
    with pytest.raises(
        UsageError,
        match=r"features.kind.ids: the model itself makes rows of this input \(vocabulary",
    ):
        describe_features(ModelSpec(MODEL.tables, {"kind": kind}, {}), ids)
    with pytest.raises(UsageError, match=r"features.user.unknown: the model itself defines"):
        describe_features(ModelSpec(MODEL.tables, {"user": user}, {}), unknown)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"features": {"usr": {}}},
            "features.usr: no tower takes a feature of that name; did you mean 'user'?",
        ),
        (
            {"features": {"seen_weights": {}}},
            "this input holds the weights of feature 'seen', and is sent with it",
        ),
        (
            {"corpora": {"c": {"file": "c.csv", "id": "id", "features": {"zzzz": "z"}}}},
            "corpora.c.features.zzzz: no tower takes a feature of that name; they take 2nd, "
            "recent, seen, user",
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
        (
            {"features": {"user": {"unknown": {"rule": "row", "row": 10}}}},
            "row is 10; table 'users' has 10 rows",
        ),
        (
            {"features": {"user": {"ids": {"kind": "vocabulary", "vocabulary": "nms"}}}},
            "features.user.ids.vocabulary is 'nms'; the recipe's vocabularies: none",
        ),
        (
            {"features": {"user": listed("names", mask=0)}, **VOCABULARIES},
            "features.user.ids.mask is 0; the vocabulary's keys are string",
        ),
        (
            {"features": {"user": listed("numbers", mask="0")}, **VOCABULARIES},
            "features.user.ids.mask is '0'; the vocabulary's keys are int64",
        ),
    ],
)
def test_describe_features_recipe_that_does_not_fit_is_refused(
    parts: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message.replace("?", r"\?")):
        describe_features(MODEL, job(**parts))


def of_rows(recipe_rule: dict[str, Any] | None) -> manifest.Feature:
    """The entry of an input whose rows the model casts, pads and counts from the end."""
    cast = manifest.Cast(of="int64", to="int32")
    spec = embedded(
        "user",
        "users",
        kind="bag",
        combiner="sum",
        weights="user_weights",
        encoding="ragged",
        padding=-1,
        cast=cast,
        from_end=True,
    )
    stated = {} if recipe_rule is None else {"ids": recipe_rule}
    features = {"user": {"default": {"ids": [1], "weights": [0.5]}, **stated}}
    model = ModelSpec(MODEL.tables, {"user": spec}, {})
    return describe_features(model, job(features=features))["user"]


def test_describe_features_without_a_rule_keeps_all_that_the_model_does_with_rows() -> None:
    assert of_rows(None) == manifest.EmbeddedFeature(
        kind="bag",
        table="users",
        role="context",
        combiner="sum",
        encoding="ragged",
        padding=-1,
        weighted=True,
        default={"ids": [1], "weights": [0.5]},
        cast=manifest.Cast(of="int64", to="int32"),
        from_end=True,
    )


def test_describe_features_of_a_stated_rule_takes_ids_and_no_rows() -> None:
    """Padding, casts and negative rows are of the rows that the model was trained on."""
    assert of_rows({"kind": "hash", "buckets": 7}) == manifest.EmbeddedFeature(
        kind="bag",
        table="users",
        role="context",
        ids=manifest.HashIds(buckets=7),
        combiner="sum",
        encoding="ragged",
        weighted=True,
        default={"ids": [1], "weights": [0.5]},
    )


def test_describe_features_of_a_cross_states_role_and_default_by_input() -> None:
    keys = (manifest.CrossKey(dtype="int64"), manifest.CrossKey(dtype="int64"))
    cross = manifest.CrossedIds(keys=keys, buckets=10)
    spec = embedded("user*item", "users", inputs=("user", "item"), ids=cross)
    model = ModelSpec(MODEL.tables, {"user*item": spec}, {})
    stated = {"user": {"default": 3}, "item": {"role": "candidate"}}

    entry = describe_features(model, job(features=stated))["user*item"]

    assert isinstance(entry, manifest.EmbeddedFeature)
    assert isinstance(entry.ids, manifest.CrossedIds)
    assert [(key.role, key.default) for key in entry.ids.keys] == [
        ("context", 3),
        ("candidate", None),
    ]
    assert (entry.role, entry.default) == ("candidate", None)
