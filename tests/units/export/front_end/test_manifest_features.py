from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bundle.features.ids.rules import rule_of
from bundle.format import manifest
from export.errors import UsageError
from export.front_end.manifest_features import describe_features
from export.front_end.outside_ids import OutsideIds
from export.front_end.specs import ModelSpec, TableFacts
from export.recipe.schema import ExportJob
from tests.id_graphs import KeyDtype, cast_ids, hash_ids, vocabulary_ids
from tests.units.export.traced_features import dense, embedded
from tests.units.export.traced_models import movies_recipe

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
CAST = cast_ids("int64", "int32")
LISTED = vocabulary_ids("kinds", oov_buckets=2, oov_first_row=3)


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


@pytest.mark.parametrize(
    ("vocabulary", "mask", "dtype"), [("names", "", "string"), ("numbers", 0, "int64")]
)
def test_describe_features_mask_of_the_dtype_of_the_keys_is_in_the_manifest(
    vocabulary: str, mask: int | str, dtype: KeyDtype
) -> None:
    entries = describe_features(
        MODEL, job(features={"user": listed(vocabulary, mask)}, **VOCABULARIES)
    )
    user = entries["user"]
    assert isinstance(user, manifest.EmbeddedFeature)
    assert user.ids == vocabulary_ids(vocabulary, dtype, mask=mask)


def test_describe_features_second_rule_beside_the_models_is_rejected() -> None:
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
        match=r"features.kind.ids: the model itself makes rows of this input; leave it out",
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
            {"features": {"hour": {"role": "context"}}},
            "features.hour: the recipe declares this input, but no tower's result depends on it",
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
            "features.seen.ids.buckets reaches row 10, and table 'users' has 10 rows",
        ),
        (
            {"features": {"seen": {"ids": {"kind": "buckets", "boundaries": list(range(10))}}}},
            "features.seen.ids.boundaries reaches row 10, and table 'users' has 10 rows",
        ),
        (
            {"features": {"user": {"unknown": {"rule": "row", "row": 10}}}},
            "row is 10; table 'users' has 10 rows",
        ),
    ],
)
def test_describe_features_recipe_that_does_not_fit_is_rejected(
    parts: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message.replace("?", r"\?")):
        describe_features(MODEL, job(**parts))


def of_rows(recipe_rule: dict[str, Any] | None) -> manifest.Feature:
    """The entry of an input whose rows the model casts, pads and counts from the end."""
    spec = embedded(
        "user",
        "users",
        kind="bag",
        combiner="sum",
        weights="user_weights",
        encoding="ragged",
        padding=-1,
        from_end=True,
        ids=CAST,
    )
    spec = replace(spec, has_rule=False)
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
        ids=CAST,
        from_end=True,
    )


def test_describe_features_of_a_stated_rule_takes_ids_and_no_rows() -> None:
    """Padding, casts and negative rows are of the rows that the model was trained on."""
    assert of_rows({"kind": "hash", "buckets": 7}) == manifest.EmbeddedFeature(
        kind="bag",
        table="users",
        role="context",
        ids=hash_ids(7),
        combiner="sum",
        encoding="ragged",
        weighted=True,
        default={"ids": [1], "weights": [0.5]},
    )


@pytest.mark.parametrize(("from_end", "rows"), [(False, [0, 0, 3, 9]), (True, [-10, -3, 3, 9])])
def test_describe_features_cast_ids_outside_of_the_table_read_the_nearest_row(
    from_end: bool, rows: list[int]
) -> None:
    outside = OutsideIds(from_end, "nearest")
    cast = cast_ids("float32", "int32", "Floor")
    spec = replace(embedded("user", "users", ids=cast, outside=outside), has_rule=False)
    user = describe_features(ModelSpec(MODEL.tables, {"user": spec}, {}), job())["user"]
    assert isinstance(user, manifest.EmbeddedFeature)
    assert isinstance(user.ids, manifest.GraphIds)
    numbers = np.array([-99, -2.5, 3.5, 99], np.float32)
    assert rule_of(user.ids, {}).resolve("user", numbers).tolist() == rows


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


def stored(name: str) -> dict[str, Any]:
    return {"contexts": {"c": {"file": "c.csv", "id": "id", "features": {name: "column"}}}}


def test_describe_features_of_a_context_store_belong_to_the_context() -> None:
    assert describe_features(MODEL, job(**stored("user")))["user"].role == "context"
    stated = stored("user") | {"features": {"user": {"role": "candidate"}}}
    message = "contexts.c.features.user: features.user.role states that it belongs to a candidate"
    with pytest.raises(UsageError, match=f"^{message}$"):
        describe_features(MODEL, job(**stated))


KEYED = {"features": {"user": {"ids": {"kind": "keyed"}}}}
DUMPED = {"tables": {"users": {"dump": "dump"}}}


def test_describe_features_keyed_ids_are_those_of_the_dump() -> None:
    model = ModelSpec(MODEL.tables, {"user": embedded("user", "users")}, {})
    user = describe_features(model, job(**KEYED, **DUMPED))["user"]
    assert isinstance(user, manifest.EmbeddedFeature)
    assert user.ids == manifest.KeyedIds(keys="users")


@pytest.mark.parametrize(
    ("properties", "parts", "message"),
    [
        (
            {},
            KEYED,
            "features.user.ids: table 'users' has no keys; name the dump that has them as "
            "tables.users.dump",
        ),
        (
            {},
            DUMPED,
            "features.user.ids: rows of table 'users', a dump, are found by key; write ids = "
            '{ kind = "keyed" }',
        ),
        (
            {"ids": hash_ids(10)},
            DUMPED,
            "features.user.ids: rows of table 'users', a dump, are found by key; but the model "
            "makes rows of it",
        ),
        (
            {"place": 0, "places": 2},
            {"features": {"user": {"ids": {"kind": "hash"}}}},
            "features.user.ids: the model reads ids of this input by their positions, and each "
            "position may have a rule of its own; let the model make rows of them, or give each "
            "position an input of its own",
        ),
    ],
)
def test_describe_features_ids_that_do_not_fit_the_table_are_rejected(
    properties: dict[str, Any], parts: dict[str, Any], message: str
) -> None:
    model = ModelSpec(MODEL.tables, {"user": embedded("user", "users", **properties)}, {})
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        describe_features(model, job(**parts))


def test_describe_features_input_with_one_reader_without_a_rule_takes_a_stated_one() -> None:
    features = {
        "user": embedded("user", "users"),
        "hashed": embedded("hashed", "users", inputs=("user",), ids=hash_ids(10)),
    }
    stated = {"user": {"ids": {"kind": "hash", "buckets": 9}, "unknown": {"rule": "refuse"}}}
    entries = describe_features(ModelSpec(MODEL.tables, features, {}), job(features=stated))
    user = entries["user"]
    hashed = entries["hashed"]
    assert isinstance(user, manifest.EmbeddedFeature)
    assert isinstance(hashed, manifest.EmbeddedFeature)
    assert (user.ids, hashed.ids) == (
        hash_ids(9),
        hash_ids(10),
    )
    assert user.unknown == manifest.Unknown(rule="refuse")


@pytest.mark.parametrize(("first", "buckets", "fits"), [(8, 2, True), (8, 3, False)])
def test_describe_features_rows_of_other_keys_are_among_those_of_the_table(
    first: int, buckets: int, fits: bool
) -> None:
    rule = {
        "kind": "vocabulary",
        "vocabulary": "names",
        "oov_first_row": first,
        "oov_buckets": buckets,
    }
    stated = job(features={"user": {"ids": rule}}, **VOCABULARIES)
    if fits:
        user = describe_features(MODEL, stated)["user"]
        assert isinstance(user, manifest.EmbeddedFeature)
        assert user.ids == vocabulary_ids("names", oov_buckets=2, oov_first_row=8)
        return
    message = "features.user.ids.oov_buckets reaches row 10, and table 'users' has 10 rows"
    with pytest.raises(UsageError, match=message):
        describe_features(MODEL, stated)


def test_describe_features_only_stated_rules_are_compared_with_the_models() -> None:
    properties: dict[str, Any] = {
        "ids": hash_ids(10),
        "unknown": manifest.Unknown(rule="refuse"),
    }
    model = ModelSpec(MODEL.tables, {"user": embedded("user", "users", **properties)}, {})
    user = describe_features(model, job(features={"user": {"default": 3}}))["user"]
    assert isinstance(user, manifest.EmbeddedFeature)
    assert (user.ids, user.unknown, user.default) == (properties["ids"], properties["unknown"], 3)
