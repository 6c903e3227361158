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
from tests.id_graphs import cast_ids, hash_ids, vocabulary_ids
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
LISTED = vocabulary_ids("kinds", oov_buckets=2, oov_first_row=3)


VOCABULARIES = {
    "vocabularies": {
        "names": {"file": "names.txt", "dtype": "string"},
        "numbers": {"file": "numbers.txt", "dtype": "int64"},
    }
}


def job(**parts: Any) -> ExportJob:
    return movies_recipe(**parts)


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
